"""What building, adding to and importing an index have in common: each part of a folder, and its manifest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from retriever_server.canaries import CANARY_TOP_K, make_canaries
from retriever_server.corpus import CORPUS_SUFFIXES
from retriever_server.dense import DenseIndex
from retriever_server.digests import record_file
from retriever_server.encoders import Encoder, passage_text
from retriever_server.errors import IndexFolderError
from retriever_server.manifest import FORMAT_VERSION, BM25Part, DensePart, Manifest, write_manifest
from retriever_server.rows import FaultKind
from retriever_server.shards import ShardKey, VectorShards
from retriever_server.store import PASSAGES_FILE, PassageStore
from retriever_server.workspace import SHARDS_FOLDER, built_files, check_disk

_EXPANSION = {".gz": 3, ".zst": 3, ".parquet": 3, ".pdf": 0.1}
_VERSIONED = (
    *("faiss-cpu", "faiss-gpu", "numpy", "sentence-transformers", "torch", "transformers"),
    *("bm25s", "numba", "PyStemmer"),
)


class Told:
    """What a build tells while it runs: passages done, once for each part, and a line where it takes a while."""

    def __init__(self, progress: Callable[[int, int], None] | None, notice: Callable[[str], None] | None) -> None:
        self._progress, self._notice = progress, notice
        self._done = self.total = 0

    def add(self, num_passages: int) -> None:
        """So many more passages are done."""
        self._done += num_passages
        if self._progress is not None:
            self._progress(self._done, self.total)

    def notice(self, line: str) -> None:
        """Something that a counter cannot tell."""
        if self._notice is not None:
            self._notice(line)


def encode_shards(
    store: PassageStore, key: ShardKey, folder: Path, encoder: Encoder, *, later_bytes: int, told: Told
) -> VectorShards:
    """The shards, all encoded, of the rows of `key`, after the disk was found to hold them and what is written later.

    `later_bytes` are those of the index, and of BM25 weights that are to be built after it.
    """
    shards = VectorShards(folder / SHARDS_FOLDER, key, notice=told.notice)
    num_encoded = shards.count_encoded()
    if num_encoded:
        told.notice(f"{num_encoded:,} of {shards.num_rows:,} passages were encoded before")
    missing_bytes = (shards.num_rows - num_encoded) * encoder.spec.dimension * 4
    check_disk(folder, missing_bytes + later_bytes, "the vectors and what is made of them")
    shards.encode_missing(encoder, lambda rows: [passage_text(passage) for passage in store.read(rows)], told.add)
    return shards


def dense_part(
    store: PassageStore, index: DenseIndex, encoder: Encoder, *, kind: str, reason: str, factory: str
) -> DensePart:
    """The dense part of an index that was just made, with what it finds for its canaries."""
    canaries = make_canaries(store, lambda queries: index.search(encoder.encode_queries(queries), CANARY_TOP_K))
    return DensePart(kind, reason, factory, "inner_product", True, encoder.spec, canaries)


def build_bm25_part(store: PassageStore, folder: Path, told: Told) -> BM25Part:
    """The BM25 part, after its weights were written."""
    from retriever_server.bm25 import BM25_FOLDER, TERMS, NoTermsError, build_bm25

    check_disk(folder, estimated_bm25_bytes((folder / PASSAGES_FILE).stat().st_size), "the BM25 weights")
    try:
        index = build_bm25(map(passage_text, store), folder / BM25_FOLDER, progress=told.add)
    except NoTermsError as error:
        raise IndexFolderError("no passage has a word, nothing to index with BM25") from error
    return BM25Part(TERMS, make_canaries(store, lambda queries: index.search(queries, CANARY_TOP_K)))


def write_new_manifest(
    folder: Path,
    num_passages: int,
    corpus_sha256: str,
    *,
    dense: DensePart | None,
    bm25: BM25Part | None,
    num_skipped: Mapping[FaultKind, int],
) -> Manifest:
    """The manifest of the files that a build has written, which are read once more for their digests."""
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        num_passages=num_passages,
        corpus_sha256=corpus_sha256,
        num_skipped=dict(num_skipped),
        files={path.relative_to(folder).as_posix(): record_file(path) for path in built_files(folder)},
        versions=_versions(),
        dense=dense,
        bm25=bm25,
    )
    write_manifest(manifest, folder)
    return manifest


def estimated_text_bytes(corpus: Path) -> int:
    """Of the stored passages, roughly: text shrinks three times when packed (wiki-18: 2.7). 0 without a corpus."""
    if corpus.is_dir():
        return sum(estimated_text_bytes(path) for path in corpus.rglob("*") if path.is_file())
    if not corpus.is_file() or not corpus.name.lower().endswith(CORPUS_SUFFIXES):
        return 0
    return int(corpus.stat().st_size * _EXPANSION.get(corpus.suffix.lower(), 1))


def estimated_bm25_bytes(passages_bytes: int) -> int:
    """Of the BM25 weights on disk, roughly, from the bytes of the stored passages."""
    return 2 * passages_bytes


def _versions() -> dict[str, str]:
    """Of the packages that decide what is found, as far as they are installed."""
    found = {}
    for name in _VERSIONED:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
