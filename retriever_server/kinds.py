"""Kinds of dense index: short names for FAISS factory strings, and the choice among them by size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import faiss
import numpy as np
import psutil
from numpy.typing import NDArray

from retriever_server.errors import IndexFolderError

FACTORY_STRINGS: Mapping[str, str] = {
    "flat": "Flat",
    "fp16": "SQfp16",
    "sq8": "SQ8",
    "hnsw": "HNSW32",
}
"""`flat` is exact at 4 bytes a dimension, `fp16` takes 2, `sq8` 1; `hnsw` adds a graph to `flat` and scans little."""
BYTES_PER_DIMENSION: Mapping[str, float] = {"flat": 4.0, "fp16": 2.0, "sq8": 1.0}
AUTO = "auto"
_MEMORY_SHARE = 0.5
_LEAST_LISTS, _LISTS_DIVISOR = 8, 64
_CANDIDATES = 64
_TRAIN_ROWS = 65536
_TRAIN_SEED = 17


def choose_kind(kind: str, num_passages: int, dimension: int) -> tuple[str, str]:
    """The kind to build and why; any but `auto` is what was asked for.

    `auto` takes the most exact that fits in half of the memory that is free now: flat, fp16, sq8, and beyond that
    IVF with product quantisation, which is approximate.
    """
    if kind != AUTO:
        return kind, "asked for"
    free_bytes = psutil.virtual_memory().available * _MEMORY_SHARE
    for name, bytes_per_dimension in BYTES_PER_DIMENSION.items():
        needed_bytes = num_passages * dimension * bytes_per_dimension
        if needed_bytes <= free_bytes:
            return name, f"{needed_bytes / 1e9:.2f} GB of vectors, {free_bytes / 1e9:.2f} GB may be used"
    num_lists = max(1, int(4 * num_passages**0.5))
    num_codes = max(code for code in range(1, dimension // 4 + 1) if dimension % code == 0)
    return f"IVF{num_lists},PQ{num_codes}", f"even sq8 exceeds the {free_bytes / 1e9:.2f} GB that may be used"


def new_vectors(kind: str, dimension: int) -> Any:
    """An empty FAISS index by inner product. Raises IndexFolderError for a kind that FAISS does not know.

    FAISS's own defaults look into one list and keep 16 candidates; what is set here is written with the index.
    """
    try:
        vectors = faiss.index_factory(dimension, FACTORY_STRINGS.get(kind, kind), faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise IndexFolderError(
            f"--kind {kind}: neither one of {', '.join((*FACTORY_STRINGS, AUTO))} nor a FAISS factory string for "
            f"{dimension} dimensions"
        ) from error
    if (lists := faiss.try_extract_index_ivf(vectors)) is not None:
        lists.nprobe = min(lists.nlist, max(_LEAST_LISTS, lists.nlist // _LISTS_DIVISOR))
    if isinstance(vectors, faiss.IndexHNSW):
        vectors.hnsw.efSearch = _CANDIDATES
    return vectors


def train(vectors: Any, encoded_ND: NDArray[np.float32]) -> None:
    """Fit a kind that has to know the vectors, on a seeded sample of at most 65,536 of them.

    Raises IndexFolderError when there are too few for it.
    """
    if vectors.is_trained:
        return
    rows = np.random.default_rng(_TRAIN_SEED).permutation(len(encoded_ND))[:_TRAIN_ROWS]
    try:
        vectors.train(np.ascontiguousarray(encoded_ND[np.sort(rows)]))
    except RuntimeError as error:
        raise IndexFolderError(f"{len(encoded_ND):,} passages are too few for this kind of index") from error
