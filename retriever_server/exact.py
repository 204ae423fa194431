"""Exact search by brute force over vectors in chunks: what approximate and served answers are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retriever_server.dense import INDEX_FILE
from retriever_server.encoders import Encoder, passage_text
from retriever_server.store import PassageStore

_CHUNK_ROWS = 4096


@dataclass(frozen=True, slots=True)
class ExactHits:
    """The best rows of each query and their inner products (Q, K), best first, equal scores by row."""

    rows_QK: NDArray[np.int64]
    scores_QK: NDArray[np.float64]


def exact_search(chunks: Iterable[NDArray[np.float32]], queries_QD: NDArray[np.float32], top_k: int) -> ExactHits:
    """The `top_k` best rows, fewer when there are fewer, by float64 products of all queries with all vectors."""
    queries_DQ = queries_QD.astype(np.float64).T
    rows_QK = np.zeros((len(queries_QD), 0), dtype=np.int64)
    scores_QK = np.zeros((len(queries_QD), 0))
    start = 0
    for vectors_ND in chunks:
        scores_QN = (vectors_ND.astype(np.float64) @ queries_DQ).T
        rows_QN = np.broadcast_to(np.arange(start, start + len(vectors_ND)), scores_QN.shape)
        rows_QK, scores_QK = _best(
            np.concatenate((rows_QK, rows_QN), axis=1), np.concatenate((scores_QK, scores_QN), axis=1), top_k
        )
        start += len(vectors_ND)
    return ExactHits(rows_QK, scores_QK)


def scanned_vectors(folder: Path) -> Iterator[NDArray[np.float32]] | None:
    """The vectors that a folder's index compares with, in chunks; None for a kind that does not scan them all."""
    index: Any = faiss.read_index(str(folder / INDEX_FILE), faiss.IO_FLAG_MMAP_IFC)
    if not isinstance(index, faiss.IndexFlat | faiss.IndexScalarQuantizer):
        return None
    return (
        index.reconstruct_n(start, min(_CHUNK_ROWS, index.ntotal - start))
        for start in range(0, index.ntotal, _CHUNK_ROWS)
    )


def encoded_vectors(
    store: PassageStore, encoder: Encoder, progress: Callable[[int, int], None] | None = None
) -> Iterator[NDArray[np.float32]]:
    """The vectors of all passages, encoded anew in chunks."""
    for start in range(0, len(store), _CHUNK_ROWS):
        rows = range(start, min(start + _CHUNK_ROWS, len(store)))
        yield encoder.encode_passages([passage_text(store[row]) for row in rows])
        if progress is not None:
            progress(rows.stop, len(store))


def _best(
    rows_QN: NDArray[np.int64], scores_QN: NDArray[np.float64], top_k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    num_hits = min(top_k, scores_QN.shape[1])
    if num_hits < scores_QN.shape[1]:
        kept_QK = np.argpartition(-scores_QN, num_hits - 1, axis=1)[:, :num_hits]
        lowest_Q1 = np.take_along_axis(scores_QN, kept_QK, axis=1).min(axis=1, keepdims=True)
        # Of equal scores at the edge it keeps any; the lower rows are wanted.
        for query in np.flatnonzero((scores_QN >= lowest_Q1).sum(axis=1) > num_hits):
            kept_QK[query] = np.lexsort((rows_QN[query], -scores_QN[query]))[:num_hits]
        rows_QN = np.take_along_axis(rows_QN, kept_QK, axis=1)
        scores_QN = np.take_along_axis(scores_QN, kept_QK, axis=1)
    order_QK = np.lexsort((rows_QN, -scores_QN), axis=1)
    return np.take_along_axis(rows_QN, order_QK, axis=1), np.take_along_axis(scores_QN, order_QK, axis=1)
