"""Exact search by inner product at half the memory traffic: bfloat16 finds candidates, the vectors themselves decide.

A scan is bound by memory, and processors with AMX or AVX512-BF16 multiply bfloat16 far faster than float32. The scores
that decide are computed from the float32 vectors in float64. A bound on what rounding may have hidden proves, query by
query, that no row outside the candidates belongs to the answer; a query without that proof is for somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

MOST_HITS = 128
_LEAST_CANDIDATES = 64
_BLOCK_ROWS = 32
# Scores at once, 2 bytes each; their memory is kept, for fresh pages cost as much as the product.
_WORKSPACE_SCORES = 2**24
_COPIED_ROWS = 4096
_RESCORED_QUERIES = 16
_MEMORY_SHARE = 0.5
_LEAST_ROWS = 16384
# Rounding to bfloat16 changes a number by at most this share of it, a sum in float32 each addend by the other.
_BFLOAT16_ROUNDING, _FLOAT32_ROUNDING = 2.0**-8, 2.0**-23
_SCORE_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class ProvenHits:
    """Rows and scores, rounded to six decimals (Q, K), by score, then row.

    `is_proven_Q` is False where they may not be the best.
    """

    rows_QK: NDArray[np.int64]
    scores_QK: NDArray[np.float64]
    is_proven_Q: NDArray[np.bool_]


class CoarseScan:
    """A copy of vectors (N, D) in bfloat16, 2 bytes a dimension; the vectors are read where candidates are.

    `workspace_scores` are in memory at a time, at least 32 a query. For one thread at a time.
    """

    def __init__(self, vectors_ND: NDArray[np.float32], *, workspace_scores: int = _WORKSPACE_SCORES) -> None:
        import torch

        self._exact_ND = vectors_ND
        self._coarse_ND = torch.empty(vectors_ND.shape, dtype=torch.bfloat16)
        self._workspace = torch.empty(workspace_scores, dtype=torch.bfloat16)
        self._most_error = self._most_length = 0.0
        for start in range(0, len(vectors_ND), _COPIED_ROWS):
            # A mapped file is read-only, which torch does not like.
            chunk_ND = torch.from_numpy(np.array(vectors_ND[start : start + _COPIED_ROWS]))
            coarse_ND = self._coarse_ND[start : start + _COPIED_ROWS].copy_(chunk_ND)
            self._most_error = max(self._most_error, _longest(chunk_ND - coarse_ND.float()))
            self._most_length = max(self._most_length, _longest(chunk_ND))

    def search(self, queries_QD: NDArray[np.float32], num_hits: int) -> ProvenHits:
        """The best `num_hits` of at most MOST_HITS, fewer when there are fewer rows."""
        import torch

        num_candidates = min(len(self._exact_ND), max(_LEAST_CANDIDATES, 2 * num_hits))
        exact_QD = torch.from_numpy(queries_QD)
        coarse_QD = exact_QD.bfloat16()
        values_QM, rows_QM = self._candidates(coarse_QD, num_candidates)
        rows_QK, scores_QK = self._rescored(queries_QD, rows_QM.numpy(), num_hits)
        # A row that is no candidate has at most the score of the last candidate, and what rounding may hide.
        lowest_Q = values_QM[:, -1].double().numpy()
        hidden_Q = self._hidden(exact_QD, coarse_QD) + _BFLOAT16_ROUNDING * np.abs(lowest_Q)
        hidden_Q += 10.0**-_SCORE_DECIMALS
        is_all = num_candidates == len(self._exact_ND)
        is_proven_Q = np.isfinite(scores_QK).all(axis=1) & (is_all | (scores_QK[:, -1] > lowest_Q + hidden_Q))
        return ProvenHits(rows_QK, scores_QK, is_proven_Q)

    def _hidden(self, exact_QD: Any, coarse_QD: Any) -> NDArray[np.float64]:
        """How far the true product of a query and any row may exceed that of their copies, summed in float32."""
        error_Q = (exact_QD - coarse_QD.float()).norm(dim=1).double().numpy()
        length_Q = coarse_QD.float().norm(dim=1).double().numpy()
        sums = self._exact_ND.shape[1] * _FLOAT32_ROUNDING * (self._most_length + self._most_error)
        hidden_Q: NDArray[np.float64] = error_Q * self._most_length + length_Q * (self._most_error + sums)
        return hidden_Q

    def _candidates(self, coarse_QD: Any, num_candidates: int) -> tuple[Any, Any]:
        """Coarse scores and rows (Q, M) of the best by coarse score, best first."""
        import torch

        num_queries = len(coarse_QD)
        values_QM = torch.empty((num_queries, 0), dtype=torch.bfloat16)
        rows_QM = torch.empty((num_queries, 0), dtype=torch.int64)
        num_rows = max(1, len(self._workspace) // (num_queries * _BLOCK_ROWS)) * _BLOCK_ROWS
        for start in range(0, len(self._coarse_ND), num_rows):
            chunk_ND = self._coarse_ND[start : start + num_rows]
            scores_NQ = self._workspace[: len(chunk_ND) * num_queries].view(len(chunk_ND), num_queries)
            torch.mm(chunk_ND, coarse_QD.T, out=scores_NQ)
            chunk_values_QM, chunk_rows_QM = _best_of_chunk(scores_NQ, num_candidates)
            values_QM = torch.cat((values_QM, chunk_values_QM), dim=1)
            rows_QM = torch.cat((rows_QM, chunk_rows_QM + start), dim=1)
            values_QM, places_QM = values_QM.topk(min(num_candidates, values_QM.shape[1]), dim=1)
            rows_QM = rows_QM.gather(1, places_QM)
        return values_QM, rows_QM

    def _rescored(
        self, queries_QD: NDArray[np.float32], rows_QM: NDArray[np.int64], num_hits: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Each product is the same whatever else is searched for with it: einsum adds up in one order."""
        scores_QM = np.empty(rows_QM.shape)
        for start in range(0, len(rows_QM), _RESCORED_QUERIES):
            some = slice(start, start + _RESCORED_QUERIES)
            vectors_QMD = self._exact_ND[rows_QM[some]].astype(np.float64)
            scores_QM[some] = np.einsum("qmd,qd->qm", vectors_QMD, queries_QD[some].astype(np.float64))
        scores_QM = np.round(scores_QM, _SCORE_DECIMALS)
        order_QK = np.lexsort((rows_QM, -scores_QM), axis=1)[:, :num_hits]
        return np.take_along_axis(rows_QM, order_QK, axis=1), np.take_along_axis(scores_QM, order_QK, axis=1)


def is_worth_while(vectors_ND: NDArray[np.float32]) -> bool:
    """True for many vectors, on a processor that has bfloat16, when the copy takes at most half of the free memory."""
    if len(vectors_ND) < _LEAST_ROWS:
        return False  # Without torch, which takes longer to import than a small index to search.
    import torch

    capabilities = torch.cpu.get_capabilities()
    is_fast = bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
    is_small = vectors_ND.nbytes / 2 <= psutil.virtual_memory().available * _MEMORY_SHARE
    return is_fast and is_small


def _longest(vectors_ND: Any) -> float:
    return float(vectors_ND.norm(dim=1).max())


def _best_of_chunk(scores_NQ: Any, num_candidates: int) -> tuple[Any, Any]:
    """Values and rows (Q, M) of the best: they are in the blocks whose best row is among the best of blocks."""
    import torch
    import torch.nn.functional as F

    num_rows, num_queries = scores_NQ.shape
    if num_rows % _BLOCK_ROWS:
        scores_NQ = F.pad(scores_NQ, (0, 0, 0, -num_rows % _BLOCK_ROWS), value=-torch.inf)
    scores_BRQ = scores_NQ.view(-1, _BLOCK_ROWS, num_queries)
    blocks_QM = scores_BRQ.amax(dim=1).T.topk(min(num_candidates, len(scores_BRQ)), dim=1, sorted=False).indices
    members_QMR = scores_BRQ[blocks_QM, :, torch.arange(num_queries)[:, None]]
    values_QM, places_QM = members_QMR.flatten(1).topk(min(num_candidates, num_rows), dim=1)
    rows_QM = blocks_QM.gather(1, places_QM // _BLOCK_ROWS) * _BLOCK_ROWS + places_QM % _BLOCK_ROWS
    return values_QM, rows_QM
