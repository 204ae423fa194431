"""Kinds of dense index: each is built, written, opened and held against exact search."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import psutil
import pytest

from retriever_server.dense import INDEX_FILE, open_dense
from retriever_server.errors import IndexFolderError
from retriever_server.index import build_index
from retriever_server.kinds import AUTO, choose_kind, new_vectors
from retriever_server.manifest import read_manifest
from retriever_server.schema import Passage
from tests.retriever_server.bag_of_words import BagOfWordsEncoder
from tests.retriever_server.conftest import write_corpus

WORDS = [f"word{number}" for number in range(400)]
GIB = 2**30


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve hundred passages of thirty words."""
    choice = random.Random(5)
    passages = [Passage(str(number), "", " ".join(choice.choices(WORDS, k=30))) for number in range(1200)]
    return write_corpus(tmp_path_factory.mktemp("kinds") / "corpus.jsonl", passages)


@pytest.fixture(scope="module")
def queries() -> list[str]:
    """Eight words each."""
    choice = random.Random(6)
    return [" ".join(choice.choices(WORDS, k=8)) for _ in range(50)]


@pytest.fixture(scope="module")
def exact(corpus: Path, queries: list[str]) -> list[set[int]]:
    """What a flat index finds."""
    return found(corpus, corpus.with_name("flat"), "flat", queries)


def found(corpus: Path, folder: Path, kind: str, queries: list[str]) -> list[set[int]]:
    """The best ten rows of each query, from an index that went through its file."""
    encoder = BagOfWordsEncoder()
    build_index(corpus, folder, encoder, kind=kind)
    index = open_dense(folder, read_manifest(folder))
    return [{row for row, _ in hits} for hits in index.search(encoder.encode_queries(queries), 10)]


@pytest.mark.parametrize(
    ("kind", "least_recall"),
    [("fp16", 0.97), ("sq8", 0.9), ("hnsw", 0.8), ("ivfpq", 0.5), ("Flat", 1.0)],
)
def test_a_kind_finds_what_exact_search_finds(
    corpus: Path, tmp_path: Path, queries: list[str], exact: list[set[int]], kind: str, least_recall: float
) -> None:
    """Would catch a kind that is not trained, is by distance, or loses its rows on the way through the file."""
    ours = found(corpus, tmp_path / "kind", kind, queries)
    recall = np.mean([len(mine & best) / len(best) for mine, best in zip(ours, exact, strict=True)])
    assert recall >= least_recall
    manifest = read_manifest(tmp_path / "kind")
    assert manifest.dense is not None
    assert (manifest.dense.kind, manifest.dense.kind_reason) == (kind, "asked for")
    assert not (tmp_path / "kind" / "shards").exists()


def test_a_kind_of_lists_looks_into_more_than_one_after_its_file(corpus: Path, tmp_path: Path) -> None:
    """Would catch FAISS's default of one list: most of what exact search finds lies in the others."""
    for kind, expected in (("IVF4,Flat", 4), ("IVF16,Flat", 8), ("IVF1024,Flat", 16)):
        lists: Any = faiss.try_extract_index_ivf(new_vectors(kind, 256))
        assert lists.nprobe == expected
    build_index(corpus, tmp_path / "index", BagOfWordsEncoder(), kind="IVF16,Flat")
    lists = faiss.try_extract_index_ivf(faiss.read_index(str(tmp_path / "index" / INDEX_FILE), faiss.IO_FLAG_MMAP_IFC))
    assert lists.nprobe == 8
    build_index(corpus, tmp_path / "graph", BagOfWordsEncoder(), kind="hnsw")
    graph: Any = faiss.read_index(str(tmp_path / "graph" / INDEX_FILE))
    assert graph.hnsw.efSearch == 64


def test_a_kind_that_faiss_does_not_know_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    """Would catch an hour of encoding that ends in a mistyped name."""
    with pytest.raises(
        IndexFolderError, match="--kind hsnw: neither one of flat, fp16, sq8, hnsw, ivfpq, auto nor a FAISS"
    ):
        build_index(tmp_path / "no-corpus.jsonl", tmp_path / "index", BagOfWordsEncoder(), kind="hsnw")


@pytest.mark.parametrize(
    ("num_passages", "expected"),
    [
        (9_265, "flat"),
        (1_000_000, "flat"),
        (2_000_000, "fp16"),
        (5_000_000, "sq8"),
        (21_015_324, "IVF18336,PQ192"),
    ],
)
def test_auto_takes_the_most_exact_kind_that_fits(
    monkeypatch: pytest.MonkeyPatch, num_passages: int, expected: str
) -> None:
    """Would catch an index that is chosen without a look at the memory it needs."""
    memory = psutil.virtual_memory()._replace(available=8 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    kind, reason = choose_kind(AUTO, num_passages, 768)
    assert kind == expected
    assert "GB" in reason


def test_a_kind_that_is_named_is_not_second_guessed() -> None:
    """Would catch an explicit choice that the machine's memory overrides."""
    assert choose_kind("flat", 10**9, 768) == ("flat", "asked for")
