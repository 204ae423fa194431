"""Index folders: passages, FAISS vectors or BM25 weights or both, manifest. Built once, renamed, never changed."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import psutil
from numpy.typing import NDArray

from retriever_server.coarse import MOST_HITS, CoarseScan, is_worth_while
from retriever_server.corpus import read_corpus
from retriever_server.encoders import Encoder
from retriever_server.errors import IndexFolderError
from retriever_server.kinds import AUTO, choose_kind, new_vectors, train
from retriever_server.manifest import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    BM25Part,
    Canary,
    DensePart,
    Manifest,
    read_manifest,
    write_manifest,
)
from retriever_server.schema import Hits, Passage
from retriever_server.store import OFFSETS_FILE, PASSAGES_FILE, PassageStore, write_passages

INDEX_FILE = "index.faiss"
_ENCODED_FILE = "encoded.f32"
_CHUNK_PASSAGES = 1024
_NUM_CANARIES = 5
_CANARY_WORDS = 12
_CANARY_TOP_K = 3
_SPARE_BYTES = 64 * 2**20
# A hit more than asked, so that equal scores at the edge are ordered by row and not by the search's threads.
_TIE_MARGIN = 8
_SCORE_DECIMALS = 6

_VERSIONED = (
    *("faiss-cpu", "faiss-gpu", "numpy", "sentence-transformers", "torch", "transformers"),
    *("bm25s", "numba", "PyStemmer"),
)

# FAISS's own default multiplies matrices from 128,000 / dimension queries on, and below scans once a query.
faiss.cvar.distance_compute_blas_threshold = 1


def build_index(
    corpus: Path,
    out: Path,
    encoder: Encoder | None,
    *,
    kind: str = "flat",
    with_bm25: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """The manifest of the index folder written to `out`, replacing an index that was there.

    An encoder makes the dense part, of a kind of kinds.py; `with_bm25` makes the BM25 part. The whole corpus is
    checked before anything is encoded. `progress(done, total)` counts passages, once for each part. Until the end
    all lies in a folder beside `out`: a failed build leaves `out` as it was.

    Raises CorpusError, IndexFolderError.
    """
    _check_out(out)
    if encoder is not None and kind != AUTO:
        new_vectors(kind, encoder.spec.dimension)
    with _building_folder(out) as folder:
        _check_disk(folder, _estimated_bytes(corpus), "the passages")
        digest = write_passages(read_corpus(corpus), folder)
        if _num_rows(folder) == 0:
            raise IndexFolderError(f"{corpus}: no passages, nothing to index")
        store = PassageStore(folder)
        steps = _Steps(progress, len(store) * ((encoder is not None) + with_bm25))
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            num_passages=len(store),
            corpus_sha256=digest,
            dense=_build_dense(store, folder, encoder, kind, steps) if encoder is not None else None,
            bm25=_build_bm25(store, folder, steps, corpus) if with_bm25 else None,
            versions=_versions(),
            file_bytes=_file_bytes(folder),
        )
        write_manifest(manifest, folder)
        _replace(out, folder)
    return manifest


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
        scores_NK, rows_NK = self._vectors.search(queries_ND, min(num_hits + _TIE_MARGIN, len(self)))
        return [_hits(rows_K, scores_K)[:num_hits] for rows_K, scores_K in zip(rows_NK, scores_NK, strict=True)]


def open_passages(folder: Path) -> tuple[PassageStore, Manifest]:
    """The passages of an index folder and its manifest. Raises IndexFolderError when they do not fit."""
    manifest = read_manifest(folder)
    store = PassageStore(folder)
    _check("passages", folder / PASSAGES_FILE, len(store), manifest.num_passages)
    return store, manifest


def open_dense(folder: Path, manifest: Manifest) -> DenseIndex:
    """The memory-mapped vectors of a folder that has a dense part. Raises IndexFolderError when they do not fit."""
    assert manifest.dense is not None
    path = folder / INDEX_FILE
    try:
        vectors = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise IndexFolderError(f"{path}: not a FAISS index, or cut short; build it again") from error
    _check("rows of vectors", path, vectors.ntotal, manifest.num_passages)
    _check("dimension", path, vectors.d, manifest.dense.encoder.dimension)
    _check("metric", path, vectors.metric_type, faiss.METRIC_INNER_PRODUCT)
    return DenseIndex(vectors)


def passage_text(passage: Passage) -> str:
    """What is encoded: Search-R1's contents, without the empty title line when there is no title."""
    return passage.contents if passage.title else passage.text


def _hits(rows_K: NDArray[np.int64], scores_K: NDArray[np.float32]) -> Hits:
    """FAISS pads with row -1 when it has fewer hits than asked, and when a query is not finite."""
    is_hit_K = (rows_K >= 0) & np.isfinite(scores_K)
    pairs = zip(rows_K[is_hit_K].tolist(), scores_K[is_hit_K].tolist(), strict=True)
    return sorted(((row, round(score, _SCORE_DECIMALS)) for row, score in pairs), key=lambda hit: (-hit[1], hit[0]))


class _Steps:
    """One count for the parts of a build."""

    def __init__(self, report: Callable[[int, int], None] | None, total: int) -> None:
        self._report, self._total, self._done = report, total, 0

    def add(self, num_passages: int) -> None:
        """So many more passages are done."""
        self._done += num_passages
        if self._report is not None:
            self._report(self._done, self._total)


def _build_dense(store: PassageStore, folder: Path, encoder: Encoder, kind: str, steps: _Steps) -> DensePart:
    """The vectors lie in a file until all are there: a kind that is smaller than they are never holds them at once."""
    dimension = encoder.spec.dimension
    kind, reason = choose_kind(kind, len(store), dimension)
    vectors = new_vectors(kind, dimension)
    _check_disk(folder, 2 * len(store) * dimension * 4, "the vectors")
    encoded_path = folder / _ENCODED_FILE
    encoded_ND = np.memmap(encoded_path, dtype=np.float32, mode="w+", shape=(len(store), dimension))
    for rows in _chunks(len(store)):
        encoded_ND[rows.start : rows.stop] = encoder.encode_passages([passage_text(store[row]) for row in rows])
        steps.add(len(rows))
    train(vectors, encoded_ND)
    for rows in _chunks(len(store)):
        vectors.add(np.ascontiguousarray(encoded_ND[rows.start : rows.stop]))
    encoded_path.unlink()
    try:
        faiss.write_index(vectors, str(folder / INDEX_FILE))
    except RuntimeError as error:
        raise IndexFolderError(f"{folder.parent}: the vectors cannot be written; is the disk full?") from error
    index = DenseIndex(vectors)
    canaries = _canaries(store, lambda queries: index.search(encoder.encode_queries(queries), _CANARY_TOP_K))
    return DensePart(kind, reason, "inner_product", is_normalised=True, encoder=encoder.spec, canaries=canaries)


def _chunks(num_rows: int) -> Iterator[range]:
    return (range(start, min(start + _CHUNK_PASSAGES, num_rows)) for start in range(0, num_rows, _CHUNK_PASSAGES))


def _build_bm25(store: PassageStore, folder: Path, steps: _Steps, corpus: Path) -> BM25Part:
    from retriever_server.bm25 import BM25_FOLDER, TERMS, NoTermsError, build_bm25

    _check_disk(folder, 2 * (folder / PASSAGES_FILE).stat().st_size, "the BM25 weights")
    try:
        index = build_bm25(map(passage_text, store), folder / BM25_FOLDER, progress=steps.add)
    except NoTermsError as error:
        raise IndexFolderError(f"{corpus}: no passage has a word, nothing to index with BM25") from error
    return BM25Part(TERMS, _canaries(store, lambda queries: index.search(queries, _CANARY_TOP_K)))


def _canaries(store: PassageStore, search: Callable[[list[str]], list[Hits]]) -> tuple[Canary, ...]:
    """Queries made of passages spread evenly over the corpus, with what they find."""
    rows = np.linspace(0, len(store) - 1, min(_NUM_CANARIES, len(store)), dtype=int).tolist()
    queries = [" ".join(passage_text(store[row]).split()[:_CANARY_WORDS]) for row in rows]
    return tuple(
        Canary(query, tuple(store[row].id for row, _ in hits))
        for query, hits in zip(queries, search(queries), strict=True)
    )


def _file_bytes(folder: Path) -> dict[str, int]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def _check(what: str, path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise IndexFolderError(f"{path}: {what} {found:,}, but the manifest says {expected:,}; build it again")


def _num_rows(folder: Path) -> int:
    return len(np.load(folder / OFFSETS_FILE, mmap_mode="r")) - 1


def _versions() -> dict[str, str]:
    """Of the packages that decide what is found, as far as they are installed."""
    found = {}
    for name in _VERSIONED:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _check_out(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST_FILE).is_file():
        raise IndexFolderError(f"{out}: a folder that is not an index is in the way; give another --out")
    if out.exists() and not out.is_dir():
        raise IndexFolderError(f"{out}: a file is in the way; give another --out")


def _estimated_bytes(corpus: Path) -> int:
    """Of the stored passages; text shrinks about five times under gzip. 0 when there is no corpus."""
    if not corpus.is_file():
        return 0
    return corpus.stat().st_size * (5 if corpus.suffix == ".gz" else 1)


def _check_disk(folder: Path, needed_bytes: int, what: str) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes + _SPARE_BYTES:
        raise IndexFolderError(
            f"{folder.parent}: {what} need {(needed_bytes + _SPARE_BYTES) / 1e9:.2f} GB, "
            f"{free_bytes / 1e9:.2f} GB are free; make room or give another --out"
        )


@contextlib.contextmanager
def _building_folder(out: Path) -> Iterator[Path]:
    """A new folder beside `out`, gone afterwards unless it was renamed; those of killed builds go first."""
    prefix = f".{out.absolute().name}.building-"
    folder = out.absolute().with_name(f"{prefix}{os.getpid()}")
    for leftover in folder.parent.glob(f"{glob.escape(prefix)}*"):
        if not psutil.pid_exists(int(leftover.name.removeprefix(prefix).removesuffix("-old"))):
            shutil.rmtree(leftover, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        yield folder
    except OSError as error:
        raise IndexFolderError(f"{out}: the index cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _replace(out: Path, folder: Path) -> None:
    """Rename `folder` to `out`; an index that was there goes only once the new one is complete."""
    if not (out / MANIFEST_FILE).is_file():
        folder.rename(out.absolute())
        return
    old = folder.with_name(f"{folder.name}-old")
    out.rename(old)
    folder.rename(out.absolute())
    shutil.rmtree(old)
