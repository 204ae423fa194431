"""An index cut by rows finds what the whole one finds."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever_server.errors import IndexFolderError
from retriever_server.index import build_index, open_dense
from retriever_server.manifest import Manifest
from retriever_server.schema import Passage
from retriever_server.shards import Shard, merged, row_ranges
from tests.retriever_server.bag_of_words import BagOfWordsEncoder
from tests.retriever_server.conftest import write_corpus

# Every third passage has the text of another one: equal scores in different shards.
TEXTS = [f"word{n % 40} word{n % 7} word{n // 3 % 11}" for n in range(120)]


@pytest.fixture(scope="module", params=["flat", "fp16", "sq8"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """An index of 120 passages with many ties."""
    base = tmp_path_factory.mktemp(request.param)
    corpus = write_corpus(base / "corpus.jsonl", [Passage(f"p{n}", "", text) for n, text in enumerate(TEXTS)])
    return base / "index", build_index(corpus, base / "index", BagOfWordsEncoder(), kind=request.param)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 120), st.integers(1, 30), st.lists(st.sampled_from([*TEXTS, "", "nothing"]), max_size=5))
def test_shards_find_what_the_whole_finds(
    whole: tuple[Path, Manifest], num_shards: int, top_k: int, queries: list[str]
) -> None:
    """Would catch local rows told as global ones, rows lost between shards, or ties in the order of the shards."""
    folder, manifest = whole
    vectors_ND = BagOfWordsEncoder().encode_queries(queries)
    found = [Shard(folder, manifest, rows).search(vectors_ND, top_k) for rows in row_ranges(120, num_shards)]
    expected = open_dense(folder, manifest).search(vectors_ND, top_k + 40)
    scores = [[score for _, score in hits[:top_k]] for hits in expected]
    together = merged(found, top_k)
    assert [[score for _, score in hits] for hits in together] == scores
    for hits, others in zip(together, expected, strict=True):
        assert hits == sorted(others, key=lambda hit: (-hit[1], hit[0]))[:top_k]


def test_each_shard_reads_its_own_part_ahead(whole: tuple[Path, Manifest]) -> None:
    """Would catch every machine of a cluster reading the whole index into memory."""
    folder, manifest = whole
    sizes = [Shard(folder, manifest, rows).read_ahead() for rows in row_ranges(120, 3)]
    row_bytes = {"flat": 4, "fp16": 2, "sq8": 1}[manifest.dense.kind] * 256 if manifest.dense else 0
    assert sizes == [40 * row_bytes] * 3
    assert Shard(folder, manifest, range(120)).read_ahead() == (folder / "index.faiss").stat().st_size


@settings(deadline=None)
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
    manifest = build_index(corpus, tmp_path / "index", BagOfWordsEncoder(), kind="hnsw")
    with pytest.raises(IndexFolderError, match="kind hnsw cannot be cut by rows; give --shards 1"):
        Shard(tmp_path / "index", manifest, range(60))
    queries_ND = BagOfWordsEncoder().encode_queries(TEXTS[:3])
    everything = Shard(tmp_path / "index", manifest, range(120)).search(queries_ND, 5)
    assert everything == open_dense(tmp_path / "index", manifest).search(np.asarray(queries_ND), 5)
