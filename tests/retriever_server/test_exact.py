"""Brute force in chunks against brute force at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever_server.exact import encoded_vectors, exact_search, scanned_vectors
from retriever_server.index import build_index
from retriever_server.store import PassageStore
from tests.retriever_server.bag_of_words import PLANETS, BagOfWordsEncoder
from tests.retriever_server.conftest import write_corpus


@settings(max_examples=40)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_chunks_do_not_matter(chunk_sizes: list[int], top_k: int, seed: int) -> None:
    """Would catch rows that are counted anew in each chunk, or ties that go by chunk and not by row."""
    drawn = np.random.default_rng(seed)
    vectors_ND = drawn.integers(-2, 3, (sum(chunk_sizes), 3)).astype(np.float32)
    queries_QD = drawn.integers(-2, 3, (4, 3)).astype(np.float32)
    chunks = np.split(vectors_ND, np.cumsum(chunk_sizes)[:-1])
    found = exact_search(chunks, queries_QD, top_k)
    for query_D, rows_K, scores_K in zip(queries_QD, found.rows_QK, found.scores_QK, strict=True):
        scores = [float(query_D @ vector_D) for vector_D in vectors_ND]
        expected = sorted(range(len(scores)), key=lambda row: (-scores[row], row))[:top_k]
        assert rows_K.tolist() == expected
        assert scores_K.tolist() == [scores[row] for row in expected]


def test_the_vectors_of_an_index_are_those_of_its_passages(tmp_path: Path) -> None:
    """Would catch vectors read in another order than the passages; a graph does not scan and gives none."""
    corpus = write_corpus(tmp_path / "corpus.jsonl", PLANETS)
    build_index(corpus, tmp_path / "flat", BagOfWordsEncoder())
    build_index(corpus, tmp_path / "graph", BagOfWordsEncoder(), kind="hnsw")
    scanned = scanned_vectors(tmp_path / "flat")
    assert scanned is not None and scanned_vectors(tmp_path / "graph") is None
    encoded = encoded_vectors(PassageStore(tmp_path / "flat"), BagOfWordsEncoder())
    assert np.array_equal(np.concatenate(list(scanned)), np.concatenate(list(encoded)))
