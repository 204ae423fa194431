"""Index folders: passages, FAISS vectors or BM25 weights or both, manifest. Built once, renamed, never changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retriever_server.corpus import CorpusReport, read_corpus
from retriever_server.dense import INDEX_FILE, build_vectors
from retriever_server.encoders import Encoder
from retriever_server.errors import IndexFolderError
from retriever_server.kinds import AUTO, choose_kind, estimated_bytes, factory_string, new_vectors
from retriever_server.manifest import DensePart, Manifest, read_manifest
from retriever_server.parts import (
    Told,
    build_bm25_part,
    dense_part,
    encode_shards,
    estimated_bm25_bytes,
    estimated_text_bytes,
    write_new_manifest,
)
from retriever_server.shards import ShardKey
from retriever_server.store import PASSAGES_FILE, PassageStore, write_passages
from retriever_server.workspace import building_folder, check_disk, take_place


def build_index(
    corpus: Path,
    out: Path,
    encoder: Encoder | None,
    *,
    kind: str = "flat",
    with_bm25: bool = False,
    chunk_words: int | None = None,
    report: CorpusReport | None = None,
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> Manifest:
    """The manifest of the index folder written to `out`, replacing an index that was there.

    An encoder makes the dense part, of a kind of kinds.py; `with_bm25` makes the BM25 part. The whole corpus is
    checked before anything is encoded, `chunk_words` and `report` being read_corpus's. `progress(done, total)` counts
    passages, once for each part; `notice` gets a line where something else takes long. Until the end all lies in a
    folder beside `out`, and `out` is as it was; what a build encoded before it failed or was killed is there for the
    next one of the same corpus and encoder. In memory are a few thousand passages and vectors, and the index.

    Raises CorpusError, IndexFolderError.
    """
    if encoder is not None and kind != AUTO:
        new_vectors(kind, encoder.spec.dimension)
    told = Told(progress, notice)
    report = report if report is not None else CorpusReport()
    with building_folder(out) as folder:
        check_disk(folder, estimated_text_bytes(corpus), "the passages")
        digest = write_passages(read_corpus(corpus, chunk_words=chunk_words, report=report), folder)
        if report.num_passages == 0:
            raise IndexFolderError(f"{corpus}: no passages, nothing to index ({report.summary})")
        store = PassageStore(folder)
        told.total = len(store) * ((encoder is not None) + with_bm25)
        dense = None
        if encoder is not None:
            dense = _build_dense(store, digest, folder, encoder, kind=kind, with_bm25=with_bm25, told=told)
        bm25 = build_bm25_part(store, folder, told) if with_bm25 else None
        manifest = write_new_manifest(
            folder, len(store), digest, dense=dense, bm25=bm25, num_skipped=report.num_skipped
        )
        take_place(folder, out)
    return manifest


def open_passages(folder: Path) -> tuple[PassageStore, Manifest]:
    """The passages of an index folder and its manifest. Raises IndexFolderError when they do not fit."""
    manifest = read_manifest(folder)
    store = PassageStore(folder)
    if len(store) != manifest.num_passages:
        raise IndexFolderError(
            f"{folder / PASSAGES_FILE}: passages {len(store):,}, but the manifest says {manifest.num_passages:,}; "
            "build it again"
        )
    return store, manifest


def _build_dense(
    store: PassageStore, digest: str, folder: Path, encoder: Encoder, *, kind: str, with_bm25: bool, told: Told
) -> DensePart:
    spec = encoder.spec
    kind, reason = choose_kind(kind, len(store), spec.dimension)
    factory = factory_string(kind, len(store), spec.dimension)
    key = ShardKey(digest, spec, (0, len(store)))
    bm25_bytes = estimated_bm25_bytes((folder / PASSAGES_FILE).stat().st_size) if with_bm25 else 0
    later_bytes = estimated_bytes(kind, len(store), spec.dimension) + bm25_bytes
    shards = encode_shards(store, key, folder, encoder, later_bytes=later_bytes, told=told)
    index = build_vectors(factory, shards, spec, folder / INDEX_FILE, notice=told.notice)
    return dense_part(store, index, encoder, kind=kind, reason=reason, factory=factory)
