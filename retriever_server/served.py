"""An index in service: its queue, its cache, its manifest, and whether it has answered a query yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from retriever_server.batching import MicroBatcher
from retriever_server.cache import ResultCache
from retriever_server.contract import Answers
from retriever_server.errors import OverloadedError, PartGoneError
from retriever_server.manifest import Manifest
from retriever_server.metrics import Metrics
from retriever_server.retrievers import Retriever
from retriever_server.settings import Batching


class ServedIndex:
    """One retriever and all that must go with it when another takes its place: no answer outlives its index.

    For one event loop at a time.
    """

    def __init__(
        self,
        retriever: Retriever,
        manifest: Manifest | None,
        *,
        metrics: Metrics,
        cache_entries: int,
        batching: Batching,
        num_threads: int = 1,
    ) -> None:
        self.manifest = manifest
        self._cache = ResultCache(cache_entries)
        self._metrics = metrics
        listener = _Listener(metrics, self._cache)
        num_threads = max(num_threads, 2 if batching.overlap else 1)
        self._batcher = MicroBatcher(retriever, batching, num_threads=num_threads, listener=listener)
        self._is_warm = False
        self._warming: asyncio.Task[None] | None = None

    @property
    def num_pending(self) -> int:
        """Queries that wait for a batch."""
        return self._batcher.num_pending

    async def search(self, queries: Sequence[str], *, top_k: int) -> Answers:
        """See MicroBatcher.search; what is in the cache is not searched again.

        The cache gets each answer as soon as it is there: a request too large for one deadline comes further each time.
        """
        kept = {query: hits for query in queries if (hits := self._cache.get(query, top_k)) is not None}
        missing = [query for query in queries if query not in kept]
        self._metrics.cache_hits.inc(len(queries) - len(missing))
        try:
            found = dict(zip(missing, await self._batcher.search(missing, top_k=top_k), strict=True))
        except PartGoneError:
            # From now on /ready asks a query of its own until one is answered.
            self._is_warm = False
            raise
        return [kept[query] if query in kept else found[query] for query in queries]

    async def warm(self) -> None:
        """Ask the retriever a query of its own: the first search of a process takes longer, or fails."""
        canaries = self.manifest.canaries if self.manifest is not None else ()
        query = canaries[0].query if canaries else "a first query"
        await self._batcher.search([query], top_k=1)
        self._is_warm = True

    def check_warm(self) -> None:
        """Never waits. Raises OverloadedError until a query of its own was answered, which this starts."""
        if self._is_warm:
            return
        reason = "a first query is under way"
        if self._warming is not None and self._warming.done() and not self._warming.cancelled():
            reason = f"the first query failed ({self._warming.exception()})"
        if self._warming is None or self._warming.done():
            self._warming = asyncio.get_running_loop().create_task(self.warm())
        raise OverloadedError(reason, retry_after_seconds=1)


class _Listener:
    """Counts what a batcher does, and keeps the answers."""

    def __init__(self, metrics: Metrics, cache: ResultCache) -> None:
        self._cache = cache
        self.on_pending = metrics.count_pending
        self.on_search = metrics.count_search

    def on_answers(self, queries: Sequence[str], top_k: int, answers: Answers) -> None:
        """See batching.Listener."""
        for query, hits in zip(queries, answers, strict=True):
            self._cache.keep(query, top_k, hits)
