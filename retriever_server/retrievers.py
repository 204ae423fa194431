"""Queries in, scored passages out: the one seam between the service and the ways to search."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from retriever_server.fusion import reciprocal_rank_fusion
from retriever_server.schema import Hits, ScoredPassage
from retriever_server.store import PassageStore

if TYPE_CHECKING:
    from retriever_server.bm25 import BM25Index
    from retriever_server.dense import DenseIndex
    from retriever_server.encoders import Encoder

P = ParamSpec("P")
T = TypeVar("T")

# Four times the 50 hits that an answer rarely exceeds. Cormack et al. fused runs of 1,000, which takes ten times
# as long to fuse.
FUSION_DEPTH = 200


class Retriever(Protocol):
    """One way to search. Where batches overlap several threads call it: it locks what is for one of them."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """Per query at most `top_k` passages, best first; perhaps fewer, perhaps none.

        A smaller `top_k` finds the beginning of what a larger one finds: requests that share a search differ in it.
        """
        ...


def one_at_a_time(step: Callable[P, T]) -> Callable[P, T]:
    """The step, which others wait for while a thread is in it: a model, an index or a stemmer is for one thread."""
    lock = Lock()

    def alone(*arguments: P.args, **options: P.kwargs) -> T:
        with lock:
            return step(*arguments, **options)

    return alone


class RowRetriever(ABC):
    """Finds rows of a corpus; `search` reads their passages."""

    def __init__(self, store: PassageStore) -> None:
        self._store = store

    @abstractmethod
    def search_rows(self, queries: Sequence[str], top_k: int) -> list[Hits]:
        """Per query at most `top_k` (row, score), best first."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """See Retriever."""
        found = self.search_rows(queries, top_k)
        return [[ScoredPassage(self._store[row], score) for row, score in hits] for hits in found]


class DenseRetriever(RowRetriever):
    """An encoder and the index that was built with it; the score is the inner product of unit vectors."""

    def __init__(self, index: DenseIndex, encoder: Encoder, store: PassageStore) -> None:
        super().__init__(store)
        self._encode, self._search = one_at_a_time(encoder.encode_queries), one_at_a_time(index.search)

    def search_rows(self, queries: Sequence[str], top_k: int) -> list[Hits]:
        """See RowRetriever; equal scores by row."""
        return self._search(self._encode(queries), top_k)


class BM25Retriever(RowRetriever):
    """Passages that share a term with the query; none when there is no such passage."""

    def __init__(self, index: BM25Index, store: PassageStore) -> None:
        super().__init__(store)
        self._search = one_at_a_time(index.search)

    def search_rows(self, queries: Sequence[str], top_k: int) -> list[Hits]:
        """See RowRetriever; equal scores by row."""
        return self._search(queries, top_k)


class HybridRetriever(RowRetriever):
    """Reciprocal rank fusion of the best 200 that each of some retrievers over one store finds, never more.

    The depth is the same for each `top_k`: with a smaller one for a smaller `top_k`, an answer would depend on which
    other requests shared its search.
    """

    def __init__(self, retrievers: Sequence[RowRetriever], store: PassageStore) -> None:
        super().__init__(store)
        self._retrievers = retrievers

    def search_rows(self, queries: Sequence[str], top_k: int) -> list[Hits]:
        """See RowRetriever; the score is the fused one, at most 1/61 from each."""
        found = [retriever.search_rows(queries, FUSION_DEPTH) for retriever in self._retrievers]
        return [
            reciprocal_rank_fusion([row for row, _ in hits] for hits in of_query)[:top_k]
            for of_query in zip(*found, strict=True)
        ]


class RandomRetriever(RowRetriever):
    """A control: passages that have nothing to do with the query, always the same ones for it; scores are 0."""

    def __init__(self, store: PassageStore, *, seed: int = 0) -> None:
        super().__init__(store)
        self._seed = seed

    def search_rows(self, queries: Sequence[str], top_k: int) -> list[Hits]:
        """See RowRetriever; in the order drawn."""
        return [self._draw(query, min(top_k, len(self._store))) for query in queries]

    def _draw(self, query: str, num_hits: int) -> Hits:
        """One by one: `sample` draws other rows for another number of them."""
        draw = random.Random(f"{self._seed} {query}")
        rows: dict[int, float] = {}
        while len(rows) < num_hits:
            rows[draw.randrange(len(self._store))] = 0.0
        return list(rows.items())


class EmptyRetriever:
    """A control: finds nothing."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """See Retriever."""
        return [[] for _ in queries]
