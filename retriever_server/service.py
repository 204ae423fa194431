"""What the app serves at the moment, and how another index takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from retriever_server.errors import OverloadedError, ReloadError
from retriever_server.manifest import Manifest
from retriever_server.metrics import Metrics
from retriever_server.retrievers import Retriever
from retriever_server.served import ServedIndex
from retriever_server.settings import Batching

Opened = tuple[Retriever, Manifest | None]


class Service:
    """One served index at a time, or none yet.

    A request is answered by the index that was served when it came, to its end. `open_again` opens the index
    as it lies on disk now; it may take its time, and raise.
    """

    def __init__(
        self,
        *,
        cache_entries: int,
        batching: Batching,
        num_threads: int = 1,
        open_again: Callable[[], Opened] | None = None,
    ) -> None:
        self.metrics = Metrics()
        self._cache_entries, self._batching, self._num_threads = cache_entries, batching, num_threads
        self._open_again = open_again
        self._served: ServedIndex | None = None
        self._loading = asyncio.Lock()

    @property
    def served(self) -> ServedIndex:
        """Raises OverloadedError before there is one."""
        if self._served is None:
            raise OverloadedError("the index and its encoder are still loading", retry_after_seconds=2)
        return self._served

    @property
    def is_loading(self) -> bool:
        """True while a thread opens an index."""
        return self._loading.locked()

    def attach(self, retriever: Retriever, manifest: Manifest | None = None) -> None:
        """Serve this retriever from now on, warm or not."""
        self._served = self._made((retriever, manifest))

    async def load(self, open_index: Callable[[], Opened]) -> ServedIndex:
        """What is served from now on. Raises what opening or the first search raised, and all stays as it was."""
        async with self._loading:
            self._served = fresh = await self._open(open_index)
            return fresh

    async def reload(self) -> ServedIndex:
        """Load the index as it lies on disk now. One load at a time; others wait.

        Raises ReloadError, and the old index serves on.
        """
        async with self._loading:
            self._served = fresh = await self._open_fresh()
            return fresh

    async def prepare(self) -> ServedIndex:
        """The index as it lies on disk now, loaded and warm but not served yet: `swap` does that.

        Raises ReloadError.
        """
        async with self._loading:
            return await self._open_fresh()

    def swap(self, fresh: ServedIndex) -> None:
        """Serve what was prepared."""
        self._served = fresh

    async def _open_fresh(self) -> ServedIndex:
        assert self._open_again is not None
        try:
            return await self._open(self._open_again)
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise ReloadError(f"the index was not reloaded, the old one serves on: {reason}") from error

    async def _open(self, open_index: Callable[[], Opened]) -> ServedIndex:
        """Opened on a thread that ends with it, and warm.

        A thread that has used a model keeps helpers, and OpenMP lets those of all threads together wait only briefly
        for work when they are more than the cores: encoding went on as if on one core.
        """
        thread = ThreadPoolExecutor(1, thread_name_prefix="open")
        try:
            opened = await asyncio.get_running_loop().run_in_executor(thread, open_index)
        finally:
            thread.shutdown(wait=False)
        fresh = self._made(opened)
        await fresh.warm()
        return fresh

    def _made(self, opened: Opened) -> ServedIndex:
        return ServedIndex(
            *opened,
            metrics=self.metrics,
            cache_entries=self._cache_entries,
            batching=self._batching,
            num_threads=self._num_threads,
        )
