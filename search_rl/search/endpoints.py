"""Which service is asked next: services in turn, each behind a circuit breaker (Nygard, Release It!, 2007).

A circuit opens after some failures in a row: nobody asks that service, and a probe looks now and then whether it is
back. While every circuit is open there is an outage, and whoever wants to search waits, up to a limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import httpx

from search_rl.errors import ConfigError, RetrieverError, RetrieverOutage


@dataclass(slots=True)
class Endpoint:
    """One service and the state of its circuit."""

    url: str
    failures_to_open: int
    num_failures: int = 0
    fault: str = ""
    prober: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """True while nobody should ask this service."""
        return self.num_failures >= self.failures_to_open

    def __str__(self) -> str:
        return f"{self.url} ({self.fault})" if self.fault else self.url


@dataclass(slots=True)
class Endpoints:
    """All services of a client; lives in one event loop.

    `probe` raises RetrieverError while a service is away. `on_pause` hears of an outage when it begins and at every
    probe that fails in it.
    """

    all: Sequence[Endpoint]
    probe: Callable[[str], Awaitable[None]]
    probe_seconds: float
    outage_limit_seconds: float
    on_pause: Callable[[str], None]
    _turn: int = 0
    _outage_began: float | None = None
    _is_over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def outage(self) -> str:
        """Who is away and why."""
        return f"no retriever answers: {', '.join(str(endpoint) for endpoint in self.all)}"

    @property
    def is_outage(self) -> bool:
        """True while every circuit is open."""
        return self._outage_began is not None

    @property
    def is_lost(self) -> bool:
        """True when an outage has lasted longer than its limit."""
        began = self._outage_began
        return began is not None and time.monotonic() - began >= self.outage_limit_seconds

    async def pick(self) -> Endpoint:
        """The next service in turn whose circuit is closed; in an outage, the first that is back.

        Raises RetrieverOutage once the outage has lasted for `outage_limit_seconds`.
        """
        while (endpoint := self._next_closed()) is None:
            if self.is_lost:
                raise RetrieverOutage(f"{self.outage}, for more than {self.outage_limit_seconds:g} seconds")
            assert self._outage_began is not None
            with suppress(TimeoutError):
                async with asyncio.timeout(self._outage_began + self.outage_limit_seconds - time.monotonic()):
                    await self._is_over.wait()
        return endpoint

    def _next_closed(self) -> Endpoint | None:
        for _ in self.all:
            endpoint = self.all[self._turn % len(self.all)]
            self._turn += 1
            if not endpoint.is_open:
                return endpoint
        return None

    def succeeded(self, endpoint: Endpoint) -> None:
        """Note a good reply: the circuit is closed."""
        endpoint.num_failures = 0
        self._outage_began = None
        self._is_over.set()

    def failed(self, endpoint: Endpoint, fault: str) -> None:
        """Note a failure; the last of enough in a row opens the circuit."""
        was_open = endpoint.is_open
        endpoint.num_failures += 1
        endpoint.fault = fault
        if was_open or not endpoint.is_open:
            return
        if endpoint.prober is None or endpoint.prober.done():
            endpoint.prober = asyncio.create_task(self._probe_until_closed(endpoint))
        if self._next_closed() is None:
            self._outage_began = time.monotonic()
            self._is_over.clear()
            self.on_pause(self.outage)

    async def _probe_until_closed(self, endpoint: Endpoint) -> None:
        while endpoint.is_open:
            await asyncio.sleep(self.probe_seconds)
            try:
                await self.probe(endpoint.url)
            except RetrieverError:
                if self.is_outage:
                    self.on_pause(self.outage)
            else:
                self.succeeded(endpoint)

    async def close(self) -> None:
        """Stop all probes."""
        probers = [endpoint.prober for endpoint in self.all if endpoint.prober is not None]
        for prober in probers:
            prober.cancel()
        await asyncio.gather(*probers, return_exceptions=True)


def checked_urls(urls: str | Sequence[str]) -> tuple[str, ...]:
    """The base URLs. Raises ConfigError for none at all, for one that is no http URL, and for one given twice."""
    checked = tuple(_checked_url(url) for url in ([urls] if isinstance(urls, str) else urls))
    if not checked:
        raise ConfigError("retriever url is an empty list: name at least one, such as http://127.0.0.1:8000")
    for url in checked:
        if checked.count(url) > 1:
            raise ConfigError(f"retriever url {url} is given twice")
    return checked


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"retriever url {url!r} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"retriever url {url!r} must look like http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/retrieve")
