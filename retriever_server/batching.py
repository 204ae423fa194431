"""Micro-batching: many requests become few searches; a large one cannot starve the small."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

from retriever_server.contract import Answers
from retriever_server.errors import OverloadedError
from retriever_server.retrievers import Retriever
from retriever_server.settings import Batching

_IDLE_SHARE, _IDLE_LOOKS = 0.1, 3


@dataclass(slots=True, eq=False)
class _Request:
    """Queries of one caller; `answers` fills batch by batch until `done` gets it."""

    queries: Sequence[str]
    top_k: int
    done: asyncio.Future[Answers]
    answers: Answers = field(init=False)
    num_missing: int = field(init=False)
    num_taken: int = 0

    def __post_init__(self) -> None:
        self.answers = [[] for _ in self.queries]
        self.num_missing = len(self.queries)

    @property
    def num_left(self) -> int:
        """Queries that no batch has taken yet."""
        return len(self.queries) - self.num_taken


@dataclass(frozen=True, slots=True)
class _Share:
    """The part of a request that goes into a batch, from its query `start` on."""

    request: _Request
    start: int
    queries: Sequence[str]


class Listener(Protocol):
    """Hears what a batcher does."""

    def on_pending(self, change: int) -> None:
        """So many more queries wait, or fewer."""
        ...

    def on_search(self, num_queries: int, seconds: float) -> None:
        """A batch was searched, well or not; called on the search's thread."""
        ...

    def on_answers(self, queries: Sequence[str], top_k: int, answers: Answers) -> None:
        """Some queries of a request were answered, though the whole of it may never be."""
        ...


class MicroBatcher:
    """Runs searches batch by batch, one at a time unless told; a batch holds what had arrived when a thread was idle.

    Requests take turns, `share_queries` each, until `max_batch_queries` are together. Equal queries of
    a batch are searched once. Use it inside one running event loop at a time. With `num_threads` above one so
    many batches are under way at a time: for a retriever that waits for other machines, or does one step for a batch
    while it does another for the next.
    """

    def __init__(
        self,
        retriever: Retriever,
        bounds: Batching | None = None,
        *,
        num_threads: int = 1,
        listener: Listener | None = None,
    ) -> None:
        self._retriever = retriever
        self._bounds = bounds or Batching()
        self._listener = listener
        self._waiting: deque[_Request] = deque()
        self._num_pending = 0
        self._batch_seconds = 0.0
        self._num_returning = 0
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="search")
        self._num_threads = num_threads
        self._searching: set[asyncio.Task[None]] = set()
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
        self._check_room(len(queries))
        request = _Request(queries, top_k, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._count_pending(len(queries))
        if self._drain is None or self._drain.done():
            self._drain = asyncio.create_task(self._search_all())
        try:
            async with asyncio.timeout(self._bounds.deadline_seconds):
                return await request.done
        except TimeoutError as error:
            reason = f"no answer within {self._bounds.deadline_seconds:g} s"
            raise OverloadedError(reason, retry_after_seconds=2) from error
        finally:
            self._count_pending(-request.num_left)
            request.num_taken = len(queries)

    def _check_room(self, num_queries: int) -> None:
        """Raise OverloadedError for work that would be in vain, or is more than may wait.

        A request waits for what the others may put in front of it while it takes its turns.
        """
        bounds, num_pending = self._bounds, self._num_pending
        if num_pending and num_pending + num_queries > bounds.max_pending_queries:
            raise OverloadedError(f"{num_pending} queries are waiting already", retry_after_seconds=2)
        num_turns = ceil(num_queries / bounds.share_queries)
        num_ahead = min(num_pending, len(self._waiting) * num_turns * bounds.share_queries)
        wait_seconds = num_ahead / bounds.max_batch_queries * self._batch_seconds / self._num_threads
        if wait_seconds > bounds.deadline_seconds:
            reason = f"{num_pending} queries are waiting already, an answer would take {wait_seconds:.0f} s"
            raise OverloadedError(reason, retry_after_seconds=2)

    def _count_pending(self, change: int) -> None:
        self._num_pending += change
        if self._listener is not None:
            self._listener.on_pending(change)

    async def _search_all(self) -> None:
        """Start batch after batch, each as soon as a thread is idle, until nobody waits."""
        while await self._gathered() and (shares := self._next_batch()):
            task = asyncio.create_task(self._search(shares))
            self._searching.add(task)
            task.add_done_callback(self._searching.discard)
            if len(self._searching) == self._num_threads:
                await asyncio.wait(self._searching, return_when=asyncio.FIRST_COMPLETED)

    async def _gathered(self) -> bool:
        """True, when those who were answered together have come together again, or come no longer.

        One search for all of them costs little more than one for the first. A lone caller never waits, and nobody
        longer than a search takes; when nobody has come for a tenth of that, it begins.
        """
        start, num_seen, num_idle = time.perf_counter(), 0, 0
        num_expected = self._num_returning if self._num_returning > 1 else 0
        while (
            len(self._waiting) < num_expected
            and self._num_pending < self._bounds.max_batch_queries
            and num_idle < _IDLE_LOOKS
            and time.perf_counter() - start < self._batch_seconds
        ):
            num_idle = num_idle + 1 if len(self._waiting) == num_seen else 0
            num_seen = len(self._waiting)
            # Looks are counted, not seconds: a loop that is busy with answers has read no new requests.
            await asyncio.sleep(_IDLE_SHARE * self._batch_seconds / _IDLE_LOOKS)
        self._num_returning = 0
        return True

    async def _search(self, shares: Sequence[_Share]) -> None:
        """Search one batch and hand out what was found."""
        start = time.perf_counter()
        searching = asyncio.get_running_loop().run_in_executor(self._threads, self._search_batch, shares)
        await asyncio.wait([searching])
        # Of the last few batches; a single slow one counts little.
        self._batch_seconds += 0.3 * (time.perf_counter() - start - self._batch_seconds)
        # Whatever went wrong belongs to those who asked; the next batch has its own luck.
        error = searching.exception()
        for position, share in enumerate(shares):
            if error is None:
                self._deliver(share, searching.result()[position])
            elif not share.request.done.done():
                share.request.done.set_exception(error)

    def _deliver(self, share: _Share, answers: Answers) -> None:
        """What was found for a client that has gone is heard of all the same: it may ask again."""
        request = share.request
        if self._listener is not None:
            self._listener.on_answers(share.queries, request.top_k, answers)
        for place, hits in enumerate(answers, start=share.start):
            request.answers[place] = hits
        request.num_missing -= len(answers)
        if not request.num_missing and not request.done.done():
            request.done.set_result(request.answers)
            self._num_returning += 1

    def _next_batch(self) -> list[_Share]:
        shares: list[_Share] = []
        num_free = self._bounds.max_batch_queries
        while self._waiting and num_free:
            request = self._waiting.popleft()
            if request.done.done():
                continue
            start = request.num_taken
            request.num_taken += min(self._bounds.share_queries, num_free, request.num_left)
            num_free -= request.num_taken - start
            self._count_pending(start - request.num_taken)
            shares.append(_Share(request, start, request.queries[start : request.num_taken]))
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
            if self._listener is not None:
                self._listener.on_search(len(queries), time.perf_counter() - start)
        answers = dict(zip(queries, found, strict=True))
        return [[answers[query][: share.request.top_k] for query in share.queries] for share in shares]
