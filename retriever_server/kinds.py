"""Kinds of dense index: short names for FAISS factory strings, and the choice among them by size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import faiss
import numpy as np
import psutil

from retriever_server.errors import IndexFolderError
from retriever_server.shards import VectorShards

FACTORY_STRINGS: Mapping[str, str] = {
    "flat": "Flat",
    "fp16": "SQfp16",
    "sq8": "SQ8",
    "hnsw": "HNSW32",
}
"""`flat` is exact at 4 bytes a dimension, `fp16` takes 2, `sq8` 1; `hnsw` adds a graph to `flat` and scans little."""
IVFPQ = "ivfpq"
"""Looks into some of the lists by 4-bit product codes and orders the best anew by the sq8 vectors beside them."""
BYTES_PER_DIMENSION: Mapping[str, float] = {"flat": 4.0, "fp16": 2.0, "sq8": 1.0}
AUTO = "auto"
KINDS = (*FACTORY_STRINGS, IVFPQ, AUTO)
_LARGEST_BYTES_PER_DIMENSION = 4.0
_GRAPH_BYTES = 300
_MEMORY_SHARE = 0.5
_LEAST_LISTS, _LISTS_DIVISOR = 8, 64
_CANDIDATES = 64
_REFINE_FACTOR = 4
_TRAIN_ROWS, _ROWS_PER_LIST = 65536, 64
_LEAST_ROWS_PER_LIST = 39  # Below, FAISS warns.
_TRAIN_BYTES = 2**30
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
    num_codes = _largest_divisor(dimension, dimension // 4)
    reason = f"even sq8 exceeds the {free_bytes / 1e9:.2f} GB that may be used"
    return f"IVF{_num_lists(num_passages)},PQ{num_codes}", reason


def factory_string(kind: str, num_passages: int, dimension: int) -> str:
    """FAISS's words for a kind; one that is no name of ours is taken for such words."""
    if kind != IVFPQ:
        return FACTORY_STRINGS.get(kind, kind)
    return f"IVF{_num_lists(num_passages)},PQ{_largest_divisor(dimension, dimension // 2)}x4fs,Refine(SQ8)"


def estimated_bytes(kind: str, num_passages: int, dimension: int) -> int:
    """Of an index on disk and in memory; of a kind that is not known, as the largest that is."""
    per_dimension = BYTES_PER_DIMENSION.get(kind, _LARGEST_BYTES_PER_DIMENSION)
    graph_bytes = 0 if kind in BYTES_PER_DIMENSION else _GRAPH_BYTES
    return int(num_passages * (dimension * per_dimension + graph_bytes))


def new_vectors(kind: str, dimension: int) -> Any:
    """An empty FAISS index by inner product. Raises IndexFolderError for a kind that FAISS does not know.

    FAISS's own defaults look into one list and keep 16 candidates; what is set here is written with the index.
    """
    factory = factory_string(kind, _TRAIN_ROWS, dimension)
    try:
        vectors = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise IndexFolderError(
            f"--kind {kind}: neither one of {', '.join(KINDS)} nor a FAISS factory string for {dimension} dimensions"
        ) from error
    widen_search(vectors)
    return vectors


def widen_search(vectors: Any) -> None:
    """Set how much of an approximate index a search looks at, unless that is wider already."""
    if (lists := faiss.try_extract_index_ivf(vectors)) is not None:
        lists.nprobe = max(lists.nprobe, min(lists.nlist, max(_LEAST_LISTS, lists.nlist // _LISTS_DIVISOR)))
    if isinstance(vectors, faiss.IndexHNSW):
        vectors.hnsw.efSearch = max(vectors.hnsw.efSearch, _CANDIDATES)
    if isinstance(vectors, faiss.IndexRefine):
        vectors.k_factor = max(vectors.k_factor, _REFINE_FACTOR)


def least_depth(vectors: Any) -> int:
    """Hits to ask for at least, so that a smaller number of them is the beginning of a larger one."""
    return _CANDIDATES if isinstance(vectors, faiss.IndexRefine) else 0


def train(vectors: Any, shards: VectorShards) -> None:
    """Fit a kind that has to know the vectors, on a seeded sample: 65,536, or 64 a list, but at most 1 GiB of them.

    Raises IndexFolderError when there are too few for it.
    """
    lists = faiss.try_extract_index_ivf(vectors)
    num_wanted = max(_TRAIN_ROWS, _ROWS_PER_LIST * lists.nlist if lists is not None else 0)
    num_rows = min(num_wanted, _TRAIN_BYTES // (4 * vectors.d))
    rows = np.sort(np.random.default_rng(_TRAIN_SEED).permutation(shards.num_rows)[:num_rows])
    try:
        vectors.train(shards.sample(rows))
    except RuntimeError as error:
        raise IndexFolderError(
            f"{shards.num_rows:,} passages are too few for this kind of index; their vectors stay for another --kind"
        ) from error


def _num_lists(num_passages: int) -> int:
    return max(1, min(int(4 * num_passages**0.5), num_passages // _LEAST_ROWS_PER_LIST))


def _largest_divisor(number: int, most: int) -> int:
    return max(divisor for divisor in range(1, max(1, most) + 1) if number % divisor == 0)
