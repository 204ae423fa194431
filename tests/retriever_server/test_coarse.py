"""The coarse scan: what it calls proven is exact, and what it cannot prove it leaves to FAISS."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from retriever_server.coarse import CoarseScan, is_worth_while
from retriever_server.dense import DenseIndex
from retriever_server.encoders import normalised


def unit(seed: int, num_rows: int, dimension: int = 24) -> NDArray[np.float32]:
    """Random unit vectors."""
    return normalised(np.random.default_rng(seed).standard_normal((num_rows, dimension), np.float32))


def exact(vectors_ND: NDArray[np.float32], query_D: NDArray[np.float32], top_k: int) -> list[tuple[int, float]]:
    """Brute force in float64, rounded as the index rounds."""
    scores_N = np.round(vectors_ND.astype(np.float64) @ query_D.astype(np.float64), 6)
    order_K = np.lexsort((np.arange(len(scores_N)), -scores_N))[:top_k]
    return [(int(row), float(scores_N[row])) for row in order_K]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_rows=st.integers(1, 900),
    top_k=st.integers(1, 40),
    spread=st.sampled_from([1.0, 0.1, 0.002]),
)
def test_what_is_proven_is_exact(seed: int, num_rows: int, top_k: int, spread: float) -> None:
    """Would catch a bound that is too low: near vectors that bfloat16 cannot tell apart, passed off as exact."""
    vectors_ND = normalised(unit(seed, 1) + spread * unit(seed + 1, num_rows))
    queries_QD = normalised(unit(seed, 1) + unit(seed + 2, 5))
    found = CoarseScan(vectors_ND).search(queries_QD, top_k)
    for query_D, rows_K, scores_K, is_proven in zip(
        queries_QD, found.rows_QK.tolist(), found.scores_QK.tolist(), found.is_proven_Q.tolist(), strict=True
    ):
        assert len(rows_K) == min(top_k, num_rows)
        if is_proven:
            expected = exact(vectors_ND, query_D, top_k)
            assert rows_K == [row for row, _ in expected]
            assert scores_K == pytest.approx([score for _, score in expected], abs=2e-6)


def test_random_vectors_are_proven_and_crowded_ones_are_not() -> None:
    """Would catch a bound so high that all goes the slow way, or one that is never missed."""
    queries_QD = unit(1, 50)
    assert CoarseScan(unit(2, 4000)).search(queries_QD, 5).is_proven_Q.all()
    crowded_ND = normalised(unit(3, 1) + 1e-4 * unit(4, 4000))
    assert not CoarseScan(crowded_ND).search(queries_QD, 5).is_proven_Q.any()


def test_a_workspace_of_many_chunks_finds_the_same() -> None:
    """Would catch rows counted from the start of a chunk, or the best of the last chunk alone."""
    vectors_ND, queries_QD = unit(5, 3001), unit(6, 9)
    whole = CoarseScan(vectors_ND).search(queries_QD, 7)
    parts = CoarseScan(vectors_ND, workspace_scores=9 * 500).search(queries_QD, 7)
    assert np.array_equal(whole.rows_QK, parts.rows_QK) and np.array_equal(whole.scores_QK, parts.scores_QK)


def quickened(vectors_ND: NDArray[np.float32]) -> tuple[DenseIndex, DenseIndex]:
    """An index with a coarse scan and one without."""
    indexes = []
    for _ in range(2):
        flat = faiss.IndexFlatIP(vectors_ND.shape[1])
        flat.add(vectors_ND)
        indexes.append(DenseIndex(flat))
    indexes[0].quicken()
    return indexes[0], indexes[1]


def test_a_quickened_index_answers_as_before() -> None:
    """Would catch hits mixed between proven and unproven queries, NaN in a query, or a k beyond what it takes."""
    vectors_ND = unit(7, 20_000)
    vectors_ND[::2] = vectors_ND[0]
    queries_QD = np.concatenate([unit(8, 6), vectors_ND[:1], unit(9, 1)])
    queries_QD[-1, 3] = np.nan
    quick, plain = quickened(vectors_ND)
    assert is_worth_while(vectors_ND) == (quick._coarse is not None)
    for top_k in (1, 20, 128, 129):
        for ours, theirs in zip(quick.search(queries_QD, top_k), plain.search(queries_QD, top_k), strict=True):
            assert [row for row, _ in ours] == [row for row, _ in theirs]
            assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=2e-6)


def test_an_answer_does_not_depend_on_its_batch() -> None:
    """Would catch scores that differ in the last digit with what else is searched for, so that a cache disagrees."""
    quick, _ = quickened(unit(10, 20_000))
    queries_QD = unit(11, 33)
    together = quick.search(queries_QD, 10)
    assert [quick.search(queries_QD[row : row + 1], 10)[0] for row in range(33)] == together


@pytest.mark.parametrize("dimension", [24, 768, 1000])
@pytest.mark.parametrize(("num_rows", "num_queries"), [(1, 1), (33, 3), (1000, 1), (1000, 64)])
def test_products_of_copies_are_summed_in_float32(dimension: int, num_rows: int, num_queries: int) -> None:
    """Would catch a torch that sums in bfloat16, on which the bound, and so every proof, would be too low."""
    rows_ND = torch.from_numpy(unit(12, num_rows, dimension) + 0.05).bfloat16()
    queries_QD = torch.from_numpy(unit(13, num_queries, dimension) + 0.05).bfloat16()
    products_NQ = torch.mm(rows_ND, queries_QD.T, out=torch.empty(num_rows, num_queries, dtype=torch.bfloat16))
    exact_NQ = rows_ND.double() @ queries_QD.double().T
    lengths = float(rows_ND.double().norm(dim=1).max() * queries_QD.double().norm(dim=1).max())
    allowed_NQ = 2.0**-8 * exact_NQ.abs() + dimension * 2.0**-23 * lengths
    assert bool(((products_NQ.double() - exact_NQ).abs() <= allowed_NQ).all())
