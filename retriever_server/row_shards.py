"""A dense index cut by rows where it lies: each shard maps its part of the vectors, and answers with global rows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retriever_server.dense import INDEX_FILE, DenseIndex, open_dense
from retriever_server.errors import IndexFolderError
from retriever_server.manifest import Manifest
from retriever_server.read_ahead import read_part_ahead
from retriever_server.schema import Hits


def row_ranges(num_rows: int, num_shards: int) -> list[range]:
    """The rows of each shard, as even as can be. Raises IndexFolderError when there are fewer rows than shards."""
    if num_rows < num_shards:
        raise IndexFolderError(f"{num_shards} shards of {num_rows} passages: give fewer --shards")
    bounds = [num_rows * shard // num_shards for shard in range(num_shards + 1)]
    return [range(start, stop) for start, stop in pairwise(bounds)]


class Shard:
    """Some rows of an index; searches them exactly as the whole index would."""

    def __init__(self, folder: Path, manifest: Manifest, rows: range) -> None:
        """Raises IndexFolderError, also for a kind whose vectors do not lie row by row (graphs and lists)."""
        self._first_row = rows.start
        self._path = folder / INDEX_FILE
        index = open_dense(folder, manifest)
        num_bytes = self._path.stat().st_size
        self._start, self._num_bytes = 0, num_bytes
        if len(rows) < len(index):
            vectors = _cut(folder, manifest, rows)
            self._num_bytes = len(rows) * vectors.code_size
            # The vectors are the last that is written, but for a few numbers.
            self._start = num_bytes - (len(index) - rows.start) * vectors.code_size
            index = DenseIndex(vectors)
        self._index = index

    def read_ahead(self) -> int:
        """How many bytes were read into memory; see read_ahead.py."""
        return read_part_ahead(self._path, self._start, self._num_bytes)

    def search(self, queries_ND: NDArray[np.float32], top_k: int) -> list[Hits]:
        """See DenseIndex.search; rows are those of the whole index."""
        return [
            [(self._first_row + row, score) for row, score in hits] for hits in self._index.search(queries_ND, top_k)
        ]


def merged(found: list[list[Hits]], top_k: int) -> list[Hits]:
    """Per query the best `top_k` of what each shard found, equal scores by row."""
    return [
        sorted((hit for hits in of_query for hit in hits), key=lambda hit: (-hit[1], hit[0]))[:top_k]
        for of_query in zip(*found, strict=True)
    ]


def _cut(folder: Path, manifest: Manifest, rows: range) -> Any:
    """The mapped index with a view of some of its rows in place of all."""
    assert manifest.dense is not None
    vectors = faiss.read_index(str(folder / INDEX_FILE), faiss.IO_FLAG_MMAP_IFC)
    if not isinstance(vectors, faiss.IndexFlatCodes):
        raise IndexFolderError(
            f"{folder}: an index of kind {manifest.dense.kind} cannot be cut by rows; give --shards 1, or build it "
            "with --kind flat, fp16 or sq8"
        )
    codes, row_bytes = vectors.codes, vectors.code_size
    start = faiss.cast_integer_to_void_ptr(int(codes.data()) + rows.start * row_bytes)
    bytes_vector: Any = faiss.MaybeOwnedVectorUInt8
    vectors.codes = bytes_vector.create_view(start, len(rows) * row_bytes, codes.owner)
    vectors.ntotal = len(rows)
    return vectors
