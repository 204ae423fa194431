"""Passages put behind those of an index: the old are not encoded again."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from retriever_server.canaries import check_encoder
from retriever_server.corpus import CorpusReport, read_corpus
from retriever_server.dense import INDEX_FILE, add_vectors, open_dense, open_vectors
from retriever_server.encoders import Encoder
from retriever_server.errors import IndexFolderError
from retriever_server.index import open_passages
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
from retriever_server.workspace import building_folder, check_disk, place_of_old, take_place


def add_to_index(
    index: Path,
    corpus: Path,
    load_encoder: Callable[[str], Encoder],
    *,
    chunk_words: int | None = None,
    report: CorpusReport | None = None,
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> Manifest:
    """The manifest of the index, after the passages of a corpus were put behind those that it had.

    Only the new ones are encoded; BM25 weights, which depend on all passages, are computed anew. A service goes on
    with the old index until it is told to reload. An id that the index has is a duplicate, see read_corpus.

    Raises CorpusError, IndexFolderError, EncoderError.
    """
    told = Told(progress, notice)
    report = report if report is not None else CorpusReport()
    if not place_of_old(index).is_dir():
        read_manifest(index)
    with building_folder(index) as folder:
        old, manifest = open_passages(index)  # Not before: another addition may just have ended.
        check_disk(folder, estimated_text_bytes(corpus) + manifest.num_bytes, "the passages and a copy of the index")
        taken_ids = (passage.id for passage in old)
        added = read_corpus(corpus, chunk_words=chunk_words, taken_ids=taken_ids, report=report)
        digest = write_passages(itertools.chain(old, added), folder)
        if report.num_passages == 0:
            raise IndexFolderError(f"{corpus}: no new passages, nothing to add ({report.summary})")
        store = PassageStore(folder)
        told.total = report.num_passages * (manifest.dense is not None) + len(store) * (manifest.bm25 is not None)
        dense = _grow_dense(index, store, digest, folder, manifest=manifest, load_encoder=load_encoder, told=told)
        bm25 = build_bm25_part(store, folder, told) if manifest.bm25 is not None else None
        num_skipped = Counter(manifest.num_skipped) + report.num_skipped
        manifest = write_new_manifest(folder, len(store), digest, dense=dense, bm25=bm25, num_skipped=num_skipped)
        take_place(folder, index)
    return manifest


def _grow_dense(
    index: Path,
    store: PassageStore,
    digest: str,
    folder: Path,
    *,
    manifest: Manifest,
    load_encoder: Callable[[str], Encoder],
    told: Told,
) -> DensePart | None:
    part = manifest.dense
    if part is None:
        return None
    encoder = load_encoder(part.encoder.name)
    check_encoder(encoder, part, open_dense(index, manifest), PassageStore(index))
    key = ShardKey(digest, encoder.spec, (manifest.num_passages, len(store)))
    bm25_bytes = estimated_bm25_bytes((folder / PASSAGES_FILE).stat().st_size) if manifest.bm25 is not None else 0
    later_bytes = manifest.files[INDEX_FILE].num_bytes * len(store) // manifest.num_passages + bm25_bytes
    shards = encode_shards(store, key, folder, encoder, later_bytes=later_bytes, told=told)
    vectors = open_vectors(index / INDEX_FILE, manifest.num_passages, encoder.spec.dimension, in_memory=True)
    grown = add_vectors(vectors, shards, folder / INDEX_FILE, notice=told.notice)
    return dense_part(store, grown, encoder, kind=part.kind, reason=part.kind_reason, factory=part.factory)
