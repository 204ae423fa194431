"""What the app serves at the moment, and how another index takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from retriever_server.errors import OverloadedError, ReloadError
from retriever_server.manifest import Manifest
from retriever_server.metrics import Metrics
from retriever_server.retrievers import Retriever
from retriever_server.served import ServedIndex

Opened = tuple[Retriever, Manifest | None]


class Service:
    """One served index at a time, or none yet.

    A request is answered by the index that was served when it came, to its end. `open_again` opens the index
    as it lies on disk now; it may take its time, and raise.
    """

    def __init__(self, *, cache_entries: int, open_again: Callable[[], Opened] | None = None) -> None:
        self.metrics = Metrics(lambda: self._served.num_pending if self._served is not None else 0)
        self._cache_entries = cache_entries
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

    @property
    def can_reload(self) -> bool:
        """False when nobody said how to open the index again."""
        return self._open_again is not None

    def attach(self, retriever: Retriever, manifest: Manifest | None = None) -> None:
        """Serve this retriever from now on, warm or not."""
        self._served = self._made((retriever, manifest))

    async def load(self, open_index: Callable[[], Opened]) -> ServedIndex:
        """What is served from now on: opened on another thread, and warm. One load at a time; others wait.

        Raises what opening or the first search raised; what was served is served still.
        """
        async with self._loading:
            fresh = self._made(await asyncio.to_thread(open_index))
            await fresh.warm()
            self._served = fresh
            return fresh

    async def reload(self) -> ServedIndex:
        """Load the index as it lies on disk now. Raises ReloadError, and the old index serves on."""
        assert self._open_again is not None
        try:
            return await self.load(self._open_again)
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise ReloadError(f"the index was not reloaded, the old one serves on: {reason}") from error

    def _made(self, opened: Opened) -> ServedIndex:
        return ServedIndex(*opened, metrics=self.metrics, cache_entries=self._cache_entries)
