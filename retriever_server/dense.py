"""The dense part of an index: FAISS vectors, a row of which is a row of the corpus."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retriever_server.coarse import MOST_HITS, CoarseScan, is_worth_while
from retriever_server.encoders import EncoderSpec
from retriever_server.errors import IndexFolderError
from retriever_server.kinds import least_depth, new_vectors, train, widen_search
from retriever_server.manifest import Manifest
from retriever_server.schema import Hits
from retriever_server.shards import VectorShards

INDEX_FILE = "index.faiss"
# A hit more than asked, so that equal scores at the edge are ordered by row and not by the search's threads.
_TIE_MARGIN = 8
_SCORE_DECIMALS = 6
_NOTICE_SECONDS = 10

# FAISS's own default multiplies matrices from 128,000 / dimension queries on, and below scans once a query.
_MULTIPLY, _SCAN = 1, 2**31 - 1
faiss.cvar.distance_compute_blas_threshold = _MULTIPLY
# Rows times queries up to which a scan on one thread is as fast, and leaves no thread of the matrix library's waiting
# busily in the way of the encoder's: a lone query over a small index.
_FEW_PRODUCTS = 2**15


class DenseIndex:
    """Search by inner product, exact where the kind is; a row of vectors is a row of the corpus."""

    def __init__(self, vectors: Any) -> None:
        self._vectors = vectors
        self._coarse: CoarseScan | None = None

    def __len__(self) -> int:
        return int(self._vectors.ntotal)

    def quicken(self) -> None:
        """From now on search float32 vectors through a copy in bfloat16, where that is worth while; seconds."""
        if isinstance(self._vectors, faiss.IndexFlat):
            vectors = faiss.rev_swig_ptr(self._vectors.get_xb(), self._vectors.ntotal * self._vectors.d)
            vectors_ND = vectors.reshape(self._vectors.ntotal, self._vectors.d)
            self._coarse = CoarseScan(vectors_ND) if is_worth_while(vectors_ND) else None

    def search(self, queries_ND: NDArray[np.float32], top_k: int) -> list[Hits]:
        """Per query at most `top_k` (row, score), best first, equal scores by row.

        Fewer when the index has fewer rows. Scores are rounded to six decimals; what is below is noise.
        """
        num_hits = min(top_k, len(self))
        if num_hits <= 0 or not len(queries_ND):
            return [[] for _ in queries_ND]
        queries_ND = np.ascontiguousarray(queries_ND, dtype=np.float32)
        if self._coarse is None or num_hits > MOST_HITS:
            return self._scanned(queries_ND, num_hits)
        found = self._coarse.search(queries_ND, num_hits)
        hits = [
            list(zip(rows_K, scores_K, strict=True))
            for rows_K, scores_K in zip(found.rows_QK.tolist(), found.scores_QK.tolist(), strict=True)
        ]
        unproven = np.flatnonzero(~found.is_proven_Q)
        if len(unproven):
            for query, scanned in zip(unproven.tolist(), self._scanned(queries_ND[unproven], num_hits), strict=True):
                hits[query] = scanned
        return hits

    def _scanned(self, queries_ND: NDArray[np.float32], num_hits: int) -> list[Hits]:
        """By FAISS alone."""
        depth = max(num_hits + _TIE_MARGIN, least_depth(self._vectors))
        is_few = len(self) * len(queries_ND) < _FEW_PRODUCTS
        faiss.cvar.distance_compute_blas_threshold = _SCAN if is_few else _MULTIPLY
        scores_NK, rows_NK = self._vectors.search(queries_ND, min(depth, len(self)))
        return [_hits(rows_K, scores_K)[:num_hits] for rows_K, scores_K in zip(rows_NK, scores_NK, strict=True)]


def open_dense(folder: Path, manifest: Manifest) -> DenseIndex:
    """The memory-mapped vectors of a folder that has a dense part. Raises IndexFolderError when they do not fit."""
    assert manifest.dense is not None
    return DenseIndex(open_vectors(folder / INDEX_FILE, manifest.num_passages, manifest.dense.encoder.dimension))


def open_vectors(
    path: Path, num_passages: int, dimension: int, *, in_memory: bool = False, origin: str | None = None
) -> Any:
    """The FAISS index in a file, mapped unless it is to be changed.

    Raises IndexFolderError, which names `origin` (the file), when it does not fit.
    """
    origin = origin or str(path)
    try:
        vectors = faiss.read_index(str(path), 0 if in_memory else faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise IndexFolderError(f"{origin}: not a FAISS index, or cut short; copy it whole or build it again") from error
    _check("rows of vectors", origin, vectors.ntotal, num_passages)
    _check("dimension", origin, vectors.d, dimension)
    _check("metric", origin, vectors.metric_type, faiss.METRIC_INNER_PRODUCT)
    widen_search(vectors)
    return vectors


def build_vectors(
    factory: str, shards: VectorShards, spec: EncoderSpec, path: Path, *, notice: Callable[[str], None]
) -> DenseIndex:
    """The index of encoded shards, after it was written to `path`; of the shards a few are in memory at a time."""
    vectors = new_vectors(factory, spec.dimension)
    if not vectors.is_trained:
        notice(f"training {factory}")
        train(vectors, shards)
    return add_vectors(vectors, shards, path, notice=notice)


def add_vectors(vectors: Any, shards: VectorShards, path: Path, *, notice: Callable[[str], None]) -> DenseIndex:
    """The index with the encoded shards behind what it held, after it was written to `path`."""
    end, told_at = vectors.ntotal + shards.num_rows, time.monotonic()
    for block_ND in shards.blocks():
        vectors.add(block_ND)
        if time.monotonic() - told_at > _NOTICE_SECONDS:
            notice(f"added {vectors.ntotal:,} of {end:,} vectors")
            told_at = time.monotonic()
    try:
        faiss.write_index(vectors, str(path))
    except RuntimeError as error:
        raise IndexFolderError(f"{path}: the vectors cannot be written; is the disk full?") from error
    return DenseIndex(vectors)


def _hits(rows_K: NDArray[np.int64], scores_K: NDArray[np.float32]) -> Hits:
    """FAISS pads with row -1 when it has fewer hits than asked, and when a query is not finite."""
    is_hit_K = (rows_K >= 0) & np.isfinite(scores_K)
    pairs = zip(rows_K[is_hit_K].tolist(), scores_K[is_hit_K].tolist(), strict=True)
    return sorted(((row, round(score, _SCORE_DECIMALS)) for row, score in pairs), key=lambda hit: (-hit[1], hit[0]))


def _check(what: str, origin: str, found: int, expected: int) -> None:
    if found != expected:
        raise IndexFolderError(
            f"{origin}: {what} {found:,}, but it must be {expected:,}: not the index of these passages and encoder"
        )
