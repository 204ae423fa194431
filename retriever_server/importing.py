"""Published FAISS indexes taken as they are: wiki-18's flat e5 index in two parts, its HNSW64 index, or your own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retriever_server.corpus import CorpusReport, read_corpus
from retriever_server.dense import INDEX_FILE, DenseIndex, open_vectors
from retriever_server.encoders import Encoder, passage_text
from retriever_server.errors import IndexFolderError
from retriever_server.manifest import Manifest
from retriever_server.parts import (
    Told,
    build_bm25_part,
    dense_part,
    estimated_bm25_bytes,
    estimated_text_bytes,
    write_new_manifest,
)
from retriever_server.schema import Passage
from retriever_server.store import PassageStore, write_passages
from retriever_server.workspace import building_folder, check_disk, take_place

_FIRST_BYTES = re.compile(rb"I[A-Za-z0-9]{3}")
_COPY_BYTES = 16 * 2**20
_BLOCK_ROWS = 16384
_NUM_PROBES = 16
_PROBE_TOP_K = 3
# Another compute type and twins among the passages may hide a few of the probes.
_LEAST_FOUND = 0.75


def import_index(
    vector_files: Sequence[Path],
    corpus: Path,
    out: Path,
    encoder: Encoder,
    *,
    with_bm25: bool = False,
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> Manifest:
    """The manifest of the index folder written to `out` from the parts of a FAISS index and its corpus.

    A row of vectors is a row of the corpus, as in Search-R1. Nothing is encoded but 16 passages: unless most find
    themselves, the encoder, the corpus or its order is not the one of the vectors, and the import is refused. So are
    vectors that are not finite, parts in another order and files that are cut short.

    Raises CorpusError, IndexFolderError.
    """
    told = Told(progress, notice)
    report = CorpusReport()
    with building_folder(out) as folder:
        text_bytes = estimated_text_bytes(corpus)
        bm25_bytes = estimated_bm25_bytes(text_bytes) if with_bm25 else 0
        check_disk(folder, _num_bytes(vector_files) + text_bytes + bm25_bytes, "the index and its passages")
        path = folder / INDEX_FILE
        _join(vector_files, path, told)
        told.notice("reading the corpus")
        digest = write_passages(_in_row_order(read_corpus(corpus, report=report), corpus), folder)
        if report.num_passages == 0:
            raise IndexFolderError(f"{corpus}: no passages")
        store = PassageStore(folder)
        told.total = len(store) * with_bm25
        vectors = _open(path, vector_files, num_passages=len(store), dimension=encoder.spec.dimension, told=told)
        index = DenseIndex(vectors)
        _check_origin(index, store, encoder)
        kind, factory = _kind(vectors)
        reason = f"imported from {', '.join(file.name for file in vector_files)}"
        dense = dense_part(store, index, encoder, kind=kind, reason=reason, factory=factory)
        bm25 = build_bm25_part(store, folder, told) if with_bm25 else None
        manifest = write_new_manifest(
            folder, len(store), digest, dense=dense, bm25=bm25, num_skipped=report.num_skipped
        )
        take_place(folder, out)
    return manifest


def _num_bytes(files: Sequence[Path]) -> int:
    try:
        return sum(file.stat().st_size for file in files)
    except OSError as error:
        raise IndexFolderError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _join(files: Sequence[Path], path: Path, told: Told) -> None:
    with path.open("wb") as joined:
        for file in files:
            told.notice(f"copying {file}")
            with file.open("rb") as part:
                if joined.tell() == 0 and not _FIRST_BYTES.fullmatch(part.read(4)):
                    raise IndexFolderError(f"{file}: does not begin a FAISS index; give its parts in their order")
                part.seek(0)
                shutil.copyfileobj(part, joined, _COPY_BYTES)


def _in_row_order(passages: Iterator[Passage], corpus: Path) -> Iterator[Passage]:
    """The passages. Raises IndexFolderError where ids that count from 0, as published, are no row numbers."""
    counts = False
    for row, passage in enumerate(passages):
        counts = passage.id == "0" if row == 0 else counts
        if counts and passage.id != str(row):
            raise IndexFolderError(
                f"{corpus}: passage {row + 1:,} has id {passage.id!r}, not '{row}'; the vectors are of a corpus in its "
                "published order, from which this one was changed"
            )
        yield passage


def _open(path: Path, files: Sequence[Path], *, num_passages: int, dimension: int, told: Told) -> Any:
    """The memory-mapped vectors, after each was looked at. Raises IndexFolderError."""
    vectors = open_vectors(path, num_passages, dimension, origin=" + ".join(map(str, files)))
    told.notice(f"checking {num_passages:,} vectors")
    if isinstance(vectors, faiss.IndexFlat):
        blocks = _flat_blocks(path, num_passages, dimension, files)
    elif isinstance(vectors, faiss.IndexHNSW | faiss.IndexScalarQuantizer):
        starts = range(0, num_passages, _BLOCK_ROWS)
        blocks = (vectors.reconstruct_n(start, min(_BLOCK_ROWS, num_passages - start)) for start in starts)
    else:
        return vectors  # Codes of a product quantiser are finite whatever they are.
    for number, block_ND in enumerate(blocks):
        bad = np.flatnonzero(~np.isfinite(block_ND).all(axis=1))
        if len(bad):
            row = number * _BLOCK_ROWS + int(bad[0])
            raise IndexFolderError(f"{files[0]}: the vector of row {row:,} is not finite; get the index anew")
    return vectors


def _flat_blocks(path: Path, num_passages: int, dimension: int, files: Sequence[Path]) -> Iterator[NDArray[np.float32]]:
    """Read one after the other, without mapping: they may be many times the memory."""
    header_bytes = len(faiss.serialize_index(faiss.IndexFlatIP(dimension)))
    expected = header_bytes + 4 * num_passages * dimension
    if path.stat().st_size != expected:
        raise IndexFolderError(
            f"{' + '.join(map(str, files))}: {path.stat().st_size:,} bytes, but {num_passages:,} vectors take "
            f"{expected:,}; a part is missing, cut short or there twice"
        )
    with path.open("rb") as file:
        file.seek(header_bytes)
        while len(block := np.fromfile(file, np.float32, _BLOCK_ROWS * dimension)):
            yield block.reshape(-1, dimension)


def _check_origin(index: DenseIndex, store: PassageStore, encoder: Encoder) -> None:
    """Raise IndexFolderError unless passages that are encoded anew find themselves."""
    rows = np.linspace(0, len(store) - 1, min(_NUM_PROBES, len(store)), dtype=int).tolist()
    vectors_ND = encoder.encode_passages([passage_text(store[row]) for row in rows])
    found = index.search(vectors_ND, _PROBE_TOP_K)
    num_found = sum(row in [hit for hit, _ in hits] for row, hits in zip(rows, found, strict=True))
    if num_found < _LEAST_FOUND * len(rows):
        raise IndexFolderError(
            f"{num_found} of {len(rows)} passages find themselves: the vectors are not those that encoder "
            f"{encoder.spec.name!r} gives this corpus; name the encoder that made them, and the corpus in its order"
        )


def _kind(vectors: Any) -> tuple[str, str]:
    """Our name for what was imported, and FAISS's."""
    if isinstance(vectors, faiss.IndexHNSW):
        graph: Any = vectors.hnsw
        return "hnsw", f"HNSW{graph.nb_neighbors(1)}"
    if isinstance(vectors, faiss.IndexFlat):
        return "flat", "Flat"
    return type(vectors).__name__, type(vectors).__name__
