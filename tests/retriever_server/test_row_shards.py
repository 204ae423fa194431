"""An index cut by rows finds what the whole one finds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from retriever_server.dense import open_dense
from retriever_server.encoders import EncoderSpec, normalised
from retriever_server.errors import IndexFolderError
from retriever_server.index import build_index
from retriever_server.manifest import Manifest
from retriever_server.row_shards import Shard, merged, row_ranges
from retriever_server.schema import Passage
from tests.retriever_server.conftest import write_corpus

# Every text three times, far apart: equal scores in different shards.
TEXTS = [f"text {n % 40}" for n in range(120)]


class AnyVectorEncoder:
    """A vector of its own for each text: scores are equal for equal texts alone."""

    def __init__(self) -> None:
        self.spec = EncoderSpec("any-vector", "", "", 32, max_length_tokens=64)

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        vectors = [np.random.default_rng(crc32(text.encode())).normal(size=32) for text in texts]
        return normalised(np.asarray(vectors, dtype=np.float32).reshape(len(texts), 32))

    encode_passages = encode_queries


@pytest.fixture(scope="module", params=["flat", "fp16", "sq8"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """An index of 120 passages with many ties."""
    base = tmp_path_factory.mktemp(request.param)
    corpus = write_corpus(base / "corpus.jsonl", [Passage(f"p{n}", "", text) for n, text in enumerate(TEXTS)])
    return base / "index", build_index(corpus, base / "index", AnyVectorEncoder(), kind=request.param)


@settings(max_examples=8)
@given(
    st.integers(1, 30) | st.just(120),
    st.integers(1, 30),
    st.lists(st.sampled_from([*TEXTS, "", "nothing"]), max_size=5),
)
def test_shards_find_what_the_whole_finds(
    whole: tuple[Path, Manifest], num_shards: int, top_k: int, queries: list[str]
) -> None:
    """Would catch local rows told as global ones, rows lost between shards, or ties in the order of the shards."""
    folder, manifest = whole
    vectors_ND = AnyVectorEncoder().encode_queries(queries)
    found = [Shard(folder, manifest, rows).search(vectors_ND, top_k) for rows in row_ranges(120, num_shards)]
    assert merged(found, top_k) == open_dense(folder, manifest).search(vectors_ND, top_k)


def test_each_shard_reads_its_own_part_ahead(whole: tuple[Path, Manifest]) -> None:
    """Would catch every machine of a cluster reading the whole index into memory."""
    folder, manifest = whole
    sizes = [Shard(folder, manifest, rows).read_ahead() for rows in row_ranges(120, 3)]
    row_bytes = {"flat": 4, "fp16": 2, "sq8": 1}[manifest.dense.kind] * 32 if manifest.dense else 0
    assert sizes == [40 * row_bytes] * 3
    assert Shard(folder, manifest, range(120)).read_ahead() == (folder / "index.faiss").stat().st_size


@settings(max_examples=30)
@given(st.integers(1, 10**9), st.integers(1, 1000))
def test_rows_are_cut_evenly(num_rows: int, num_shards: int) -> None:
    """Would catch a shard without rows, a row in none or two, or a last shard that takes the rest."""
    if num_rows < num_shards:
        with pytest.raises(IndexFolderError, match="give fewer --shards"):
            row_ranges(num_rows, num_shards)
        return
    ranges = row_ranges(num_rows, num_shards)
    assert (ranges[0].start, ranges[-1].stop, len(ranges)) == (0, num_rows, num_shards)
    assert all(one.stop == other.start for one, other in pairwise(ranges))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


def test_a_graph_is_not_cut(tmp_path: Path) -> None:
    """Would catch a graph index cut in the middle, which finds next to nothing and says nothing."""
    corpus = write_corpus(tmp_path / "corpus.jsonl", [Passage(f"p{n}", "", text) for n, text in enumerate(TEXTS)])
    manifest = build_index(corpus, tmp_path / "index", AnyVectorEncoder(), kind="hnsw")
    with pytest.raises(IndexFolderError, match="kind hnsw cannot be cut by rows; give --shards 1"):
        Shard(tmp_path / "index", manifest, range(60))
    queries_ND = AnyVectorEncoder().encode_queries(TEXTS[:3])
    everything = Shard(tmp_path / "index", manifest, range(120)).search(queries_ND, 5)
    assert everything == open_dense(tmp_path / "index", manifest).search(np.asarray(queries_ND), 5)
