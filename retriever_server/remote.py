"""Retrievers whose steps are done elsewhere: what they ask of whom, and how the answers become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from retriever_server.canaries import check_canaries
from retriever_server.manifest import Manifest
from retriever_server.rerank import RerankingRetriever
from retriever_server.retrievers import HybridRetriever, Retriever, RowRetriever
from retriever_server.row_shards import merged
from retriever_server.schema import Hits
from retriever_server.settings import ServiceSettings
from retriever_server.store import PassageStore


class RemotePart(Protocol):
    """A part (see steps.py) as the process in front asks it."""

    def ask(self, *arguments: Any) -> Callable[[], Any]:
        """Has the step done for these arguments; what is returned waits for its answer.

        Both raise PartGoneError when nobody can do it now.
        """
        ...


class RemoteDense(RowRetriever):
    """DenseRetriever with its encoder and its rows elsewhere."""

    def __init__(self, encoder: RemotePart, shards: Sequence[RemotePart], store: PassageStore) -> None:
        super().__init__(store)
        self._encoder, self._shards = encoder, shards

    def search_rows(self, queries: Sequence[str], top_k: int) -> list[Hits]:
        """See RowRetriever; all shards search at the same time."""
        vectors_ND = self._encoder.ask(list(queries))()
        answers = [shard.ask(vectors_ND, top_k) for shard in self._shards]
        return merged([answer() for answer in answers], top_k)


class RemoteBM25(RowRetriever):
    """BM25Retriever elsewhere."""

    def __init__(self, part: RemotePart, store: PassageStore) -> None:
        super().__init__(store)
        self._part = part

    def search_rows(self, queries: Sequence[str], top_k: int) -> list[Hits]:
        """See RowRetriever."""
        hits: list[Hits] = self._part.ask(list(queries), top_k)()
        return hits


class RemoteReranker:
    """A Reranker elsewhere."""

    def __init__(self, part: RemotePart) -> None:
        self._part = part

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """See Reranker."""
        scores: list[float] = self._part.ask(list(pairs))()
        return scores


def assembled(
    parts: Mapping[str, RemotePart], store: PassageStore, manifest: Manifest, settings: ServiceSettings
) -> Retriever:
    """A retriever that has its searches done by the parts.

    Raises EncoderError when it does not find what the canaries found when the index was built.
    """
    retrievers: list[RowRetriever] = []
    if "bm25" in parts:
        retrievers.append(RemoteBM25(parts["bm25"], store))
    if "encoder" in parts:
        shards = [part for name, part in parts.items() if name.startswith("shard-")]
        retrievers.append(dense := RemoteDense(parts["encoder"], shards, store))
        assert manifest.dense is not None
        check_canaries(dense, manifest.dense)
    found = HybridRetriever(retrievers, store) if settings.retriever == "hybrid" else retrievers[0]
    return found if "reranker" not in parts else RerankingRetriever(found, RemoteReranker(parts["reranker"]))
