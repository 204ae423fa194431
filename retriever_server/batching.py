"""Micro-batching: many requests become few searches on one thread; a large one cannot starve the small."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from retriever_server.contract import Answers
from retriever_server.errors import OverloadedError
from retriever_server.retrievers import Retriever


@dataclass(slots=True, eq=False)
class _Request:
    """Queries of one caller; `answers` grows batch by batch until `done` gets it."""

    queries: Sequence[str]
    top_k: int
    done: asyncio.Future[Answers]
    answers: Answers = field(default_factory=list)
    num_taken: int = 0

    @property
    def num_left(self) -> int:
        """Queries that no batch has taken yet."""
        return len(self.queries) - self.num_taken


@dataclass(frozen=True, slots=True)
class _Share:
    """The part of a request that goes into a batch."""

    request: _Request
    queries: Sequence[str]


class MicroBatcher:
    """Runs searches one batch at a time; a batch holds what had arrived when the last one ended.

    Requests take turns, `share_queries` each, until `max_batch_queries` are together. Equal queries of
    a batch are searched once. Use it inside one running event loop at a time. `on_search(num_queries, seconds)`
    hears of every search on the search's thread.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        max_batch_queries: int = 256,
        max_pending_queries: int = 8192,
        share_queries: int = 32,
        deadline_seconds: float = 25.0,
        on_search: Callable[[int, float], None] | None = None,
    ) -> None:
        self._retriever = retriever
        self._max_batch_queries = max_batch_queries
        self._max_pending_queries = max_pending_queries
        self._share_queries = share_queries
        self._deadline_seconds = deadline_seconds
        self._on_search = on_search
        self._waiting: deque[_Request] = deque()
        self._num_pending = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self._drain: asyncio.Task[None] | None = None

    @property
    def num_pending(self) -> int:
        """Queries that wait for a batch."""
        return self._num_pending

    async def search(self, queries: Sequence[str], *, top_k: int) -> Answers:
        """Per query, in order, at most `top_k` passages. A cancelled caller's queries are dropped.

        Raises OverloadedError when too many queries wait already, or the answer is not there by the deadline.
        """
        if not queries:
            return []
        if self._num_pending and self._num_pending + len(queries) > self._max_pending_queries:
            raise OverloadedError(f"{self._num_pending} queries are waiting already", retry_after_seconds=2)
        request = _Request(queries, top_k, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._num_pending += len(queries)
        if self._drain is None or self._drain.done():
            self._drain = asyncio.create_task(self._search_all())
        try:
            async with asyncio.timeout(self._deadline_seconds):
                return await request.done
        except TimeoutError as error:
            raise OverloadedError(f"no answer within {self._deadline_seconds:g} s", retry_after_seconds=2) from error
        finally:
            self._num_pending -= request.num_left
            request.num_taken = len(queries)

    async def _search_all(self) -> None:
        """Search batch after batch until nobody waits."""
        loop = asyncio.get_running_loop()
        while shares := self._next_batch():
            searching = loop.run_in_executor(self._thread, self._search_batch, shares)
            await asyncio.wait([searching])
            # Whatever went wrong belongs to those who asked; the next batch has its own luck.
            error = searching.exception()
            for position, share in enumerate(shares):
                if share.request.done.done():
                    continue
                if error is not None:
                    share.request.done.set_exception(error)
                else:
                    _deliver(share.request, searching.result()[position])

    def _next_batch(self) -> list[_Share]:
        shares: list[_Share] = []
        num_free = self._max_batch_queries
        while self._waiting and num_free:
            request = self._waiting.popleft()
            if request.done.done():
                continue
            start = request.num_taken
            request.num_taken += min(self._share_queries, num_free, request.num_left)
            num_free -= request.num_taken - start
            self._num_pending -= request.num_taken - start
            shares.append(_Share(request, request.queries[start : request.num_taken]))
            if request.num_left:
                self._waiting.append(request)
        return shares

    def _search_batch(self, shares: Sequence[_Share]) -> list[Answers]:
        """On the search thread: the answers of each share, cut to its own top k."""
        queries = list(dict.fromkeys(query for share in shares for query in share.queries))
        start = time.perf_counter()
        try:
            found = self._retriever.search(queries, top_k=max(share.request.top_k for share in shares))
        finally:
            if self._on_search is not None:
                self._on_search(len(queries), time.perf_counter() - start)
        answers = dict(zip(queries, found, strict=True))
        return [[answers[query][: share.request.top_k] for query in share.queries] for share in shares]


def _deliver(request: _Request, answers: Answers) -> None:
    request.answers.extend(answers)
    if len(request.answers) == len(request.queries):
        request.done.set_result(request.answers)
