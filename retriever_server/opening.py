"""From an index folder and a name to a retriever: what is cheap is checked first, models load last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retriever_server.canaries import check_encoder, count_found_again
from retriever_server.dense import open_dense
from retriever_server.encoders import Encoder, SentenceEncoder
from retriever_server.errors import IndexFolderError
from retriever_server.index import open_passages
from retriever_server.manifest import Manifest, check_digests, differences
from retriever_server.rerank import CrossEncoderReranker, Reranker, RerankingRetriever
from retriever_server.retrievers import (
    BM25Retriever,
    DenseRetriever,
    EmptyRetriever,
    HybridRetriever,
    RandomRetriever,
    Retriever,
)
from retriever_server.schema import RetrieverName
from retriever_server.store import PassageStore

LoadEncoder = Callable[[str], Encoder]
LoadReranker = Callable[[str], Reranker]


def open_retriever(
    folder: Path,
    name: RetrieverName = "dense",
    *,
    rerank: str | None = None,
    load_encoder: LoadEncoder = SentenceEncoder,
    load_reranker: LoadReranker = CrossEncoderReranker,
) -> tuple[Retriever, Manifest]:
    """A retriever over an index folder and its manifest; see prepare_retriever for what is raised."""
    load, manifest = prepare_retriever(
        folder, name, rerank=rerank, load_encoder=load_encoder, load_reranker=load_reranker
    )
    return load(), manifest


def prepare_retriever(
    folder: Path,
    name: RetrieverName = "dense",
    *,
    rerank: str | None = None,
    load_encoder: LoadEncoder = SentenceEncoder,
    load_reranker: LoadReranker = CrossEncoderReranker,
) -> tuple[Callable[[], Retriever], Manifest]:
    """What loads the retriever, in seconds, and the manifest, after all was checked that can be at once.

    `rerank` names a CrossEncoder. Both raise IndexFolderError; loading also EncoderError, when a model cannot be
    loaded or is not the one of the index.
    """
    store, manifest = open_passages(folder)
    load = _prepare(folder, name, manifest, store, load_encoder)
    if rerank is None:
        return load, manifest
    return lambda: RerankingRetriever(load(), load_reranker(rerank)), manifest


def _prepare(
    folder: Path, name: RetrieverName, manifest: Manifest, store: PassageStore, load_encoder: LoadEncoder
) -> Callable[[], Retriever]:
    match name:
        case "empty":
            return EmptyRetriever
        case "random":
            return lambda: RandomRetriever(store)
        case "dense":
            return _prepare_dense(folder, manifest, store, load_encoder)
        case "bm25":
            return _prepare_bm25(folder, manifest, store)
        case "hybrid":
            bm25 = _prepare_bm25(folder, manifest, store)
            dense = _prepare_dense(folder, manifest, store, load_encoder)
            return lambda: HybridRetriever([bm25(), dense()], store)


def check_index(folder: Path) -> Manifest:
    """The manifest, after all files were read and all parts opened; no encoder is loaded. Raises IndexFolderError."""
    store, manifest = open_passages(folder)
    check_digests(manifest, folder)
    if manifest.dense is not None:
        open_dense(folder, manifest)
    if manifest.bm25 is not None:
        _prepare_bm25(folder, manifest, store)()
    return manifest


def _prepare_dense(
    folder: Path, manifest: Manifest, store: PassageStore, load_encoder: LoadEncoder
) -> Callable[[], DenseRetriever]:
    part = manifest.dense
    if part is None:
        raise missing_part(folder, manifest, "dense")
    index = open_dense(folder, manifest)

    def load() -> DenseRetriever:
        encoder = load_encoder(part.encoder.name)
        index.quicken()
        return check_encoder(encoder, part, index, store)

    return load


def _prepare_bm25(folder: Path, manifest: Manifest, store: PassageStore) -> Callable[[], BM25Retriever]:
    part = manifest.bm25
    if part is None:
        raise missing_part(folder, manifest, "bm25")

    def load() -> BM25Retriever:
        from retriever_server.bm25 import BM25_FOLDER, TERMS, open_bm25

        if differing := differences(TERMS, part.terms):
            raise IndexFolderError(f"{folder}: other BM25 settings: {differing}; build it again")
        retriever = BM25Retriever(open_bm25(folder / BM25_FOLDER, manifest.num_passages), store)
        num_same, num_expected = count_found_again(retriever, part.canaries)
        if num_same < num_expected:
            raise IndexFolderError(
                f"{folder}: BM25 finds {num_same} of {num_expected} passages that it found when the index was "
                "built: bm25s or PyStemmer has changed, build the index again"
            )
        return retriever

    return load


def missing_part(folder: Path, manifest: Manifest, part: str) -> IndexFolderError:
    """To be raised for a part that a retriever needs and the folder lacks."""
    there = " and ".join(manifest.parts)
    return IndexFolderError(f"{folder}: has no {part} part, only {there}; build it again, or choose another retriever")
