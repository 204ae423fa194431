"""The client of `POST /retrieve`: the only place that retries a search.

A failure is a RetrieverError and never an empty result (invariant 7). The wire format is Search-R1's, so that
its own server can be asked too.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import httpx
from cachetools import LRUCache

from search_rl.errors import ConfigError, RetrieverError
from search_rl.search.endpoints import Endpoint, Endpoints, checked_urls
from search_rl.search.wire import Rejected, parse_reply, request_body
from search_rl.types import SearchResult

_COALESCE_SECONDS = 0.003
_MAX_QUERIES_PER_REQUEST = 256
_MAX_BACKOFF_SECONDS = 8.0
_PROBE_QUERY = "world"

_logger = logging.getLogger(__name__)


class Searcher(Protocol):
    """Anything that answers a query."""

    async def search(self, query: str, top_k: int) -> SearchResult:
        """At most `top_k` passages, best first. Raises RetrieverError when the search fails."""
        ...


@dataclass(frozen=True, slots=True)
class SearchCounts:
    """What became of searches: answered from the cache, by an equal one already under way, or by a request.

    A request holds many queries; one that is tried again counts again.
    """

    searches: int = 0
    cached: int = 0
    shared: int = 0
    requests: int = 0
    failed_requests: int = 0

    def __add__(self, other: SearchCounts) -> SearchCounts:
        return SearchCounts(*(ours + theirs for ours, theirs in zip(astuple(self), astuple(other), strict=True)))


class SearchClient:
    """A searcher over HTTP, to be used as an async context manager inside one event loop.

    Queries that arrive within a few milliseconds share a request; one that is under way already is not asked again,
    nor is one of the last `cache_entries` answered. Several services of the same index are asked in turn.

    A request is tried up to `max_attempts` times, on transport errors and 5xx (heeding Retry-After), within
    `deadline_seconds` in all. A 4xx is final; if several queries shared the request, each goes once more
    alone, so that a bad one spoils no other. `timeout_seconds` limits one attempt; `backoff_seconds` is the
    first wait and doubles up to 8 s, with jitter. `token_file` holds the bearer token that the service wants.

    After `failures_to_open` failures in a row a service is left alone but for a probe every `probe_seconds`. While all
    are, searches wait, which counts against no other limit than `outage_limit_seconds`; past it they fail with
    RetrieverOutage until a service is back. `on_pause` hears of the wait, again and again.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        timeout_seconds: float = 30.0,
        max_attempts: int = 6,
        deadline_seconds: float = 120.0,
        backoff_seconds: float = 0.5,
        token_file: Path | None = None,
        cache_entries: int = 10_000,
        failures_to_open: int = 3,
        probe_seconds: float = 2.0,
        outage_limit_seconds: float = 600.0,
        on_pause: Callable[[str], None] = _logger.warning,
    ) -> None:
        self.urls = checked_urls(url)
        headers = {} if token_file is None else {"Authorization": f"Bearer {_token(token_file)}"}
        self._max_attempts = max_attempts
        self._deadline_seconds = deadline_seconds
        self._backoff_seconds = backoff_seconds
        self._jitter = random.Random()
        self._client = httpx.AsyncClient(transport=transport, timeout=timeout_seconds, headers=headers)
        self._endpoints = Endpoints(
            [Endpoint(url, failures_to_open) for url in self.urls],
            probe=self._check_one,
            probe_seconds=probe_seconds,
            outage_limit_seconds=outage_limit_seconds,
            on_pause=on_pause,
        )
        self._kept: LRUCache[_Key, SearchResult] = LRUCache(cache_entries)
        self._open_batches: dict[int, _Batch] = {}
        self._under_way: dict[_Key, _Batch] = {}
        self._counts = SearchCounts()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        requests = {batch.request for batch in self._under_way.values()}
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        await self._endpoints.close()
        await self._client.aclose()

    @property
    def lost(self) -> str:
        """Who is away and why, once an outage has lasted longer than its limit; empty otherwise."""
        return self._endpoints.outage if self._endpoints.is_lost else ""

    def take_counts(self) -> SearchCounts:
        """The counts since they were last taken."""
        taken, self._counts = self._counts, SearchCounts()
        return taken

    async def search(self, query: str, top_k: int) -> SearchResult:
        """See `Searcher.search`."""
        kept, batch = self._kept.get((query, top_k)), self._under_way.get((query, top_k))
        self._counts += SearchCounts(searches=1, cached=kept is not None, shared=kept is None and batch is not None)
        if kept is not None:
            return kept
        return await self._outcome(query, batch or self._batched(query, top_k))

    def _batched(self, query: str, top_k: int) -> _Batch:
        """The batch that will ask the query, the open one or a new one."""
        batch = self._open_batches.get(top_k)
        if batch is None or len(batch.queries) == _MAX_QUERIES_PER_REQUEST:
            queries: list[str] = []
            batch = _Batch(queries, asyncio.create_task(self._send(queries, top_k)))
            self._open_batches[top_k] = batch
        batch.queries.append(query)
        self._under_way[query, top_k] = batch
        return batch

    async def _outcome(self, query: str, batch: _Batch) -> SearchResult:
        """What became of one query; a caller that gives up does not stop the request for the others."""
        try:
            outcome = (await asyncio.shield(batch.request))[query]
        except asyncio.CancelledError:
            if not batch.request.cancelled():
                raise
            raise RetrieverError(f"the client of {', '.join(self.urls)} was closed during a search") from None
        if isinstance(outcome, RetrieverError):
            raise type(outcome)(str(outcome)) from outcome
        return outcome

    async def check(self) -> None:
        """Ask every service once and raise RetrieverError unless all of them answer."""
        await asyncio.gather(*(self._check_one(url) for url in self.urls))

    async def info(self) -> Mapping[str, Any] | None:
        """What the first service says of its index, None where it says nothing: Search-R1's own has no `/info`. Asks
        once. Raises RetrieverError when it does not answer.
        """
        url = f"{self.urls[0]}/info"
        try:
            response = await self._client.get(url)
            told = response.json() if response.status_code == httpx.codes.OK else None
        except httpx.RequestError as error:
            raise RetrieverError(f"{url}: {type(error).__name__} {error}".rstrip()) from error
        except ValueError:
            return None
        return told if isinstance(told, Mapping) else None

    async def _check_one(self, url: str) -> None:
        """Ask something that any index can be asked. Raises RetrieverError unless a retriever answers."""
        try:
            response = await self._post_once(url, [_PROBE_QUERY], top_k=1)
        except httpx.TransportError as error:
            raise RetrieverError(f"no retriever at {url}: start one with search-rl serve") from error
        if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            raise RetrieverError(f"the retriever at {url} is not ready yet: try again in a moment")
        parse_reply(response, url=url, queries=[_PROBE_QUERY], top_k=1)

    async def _send(self, queries: list[str], top_k: int) -> dict[str, _Outcome]:
        """Wait for company, then ask."""
        await asyncio.sleep(_COALESCE_SECONDS)
        if (batch := self._open_batches.get(top_k)) is not None and batch.queries is queries:
            del self._open_batches[top_k]
        try:
            outcomes = await self._outcomes(queries, top_k)
        finally:
            for query in queries:
                del self._under_way[query, top_k]
        for query, outcome in outcomes.items():
            if self._kept.maxsize and isinstance(outcome, SearchResult):
                self._kept[query, top_k] = outcome
        return outcomes

    async def _outcomes(self, queries: Sequence[str], top_k: int) -> dict[str, _Outcome]:
        """What became of each query."""
        try:
            results = await self._ask(queries, top_k)
        except Rejected as error:
            if len(queries) == 1:
                return {queries[0]: error}
            alone = await asyncio.gather(*(self._outcomes([query], top_k) for query in queries))
            return {query: outcome for outcomes in alone for query, outcome in outcomes.items()}
        except RetrieverError as error:
            return dict.fromkeys(queries, error)
        return dict(zip(queries, results, strict=True))

    async def _ask(self, queries: Sequence[str], top_k: int) -> list[SearchResult]:
        """One result a query."""
        endpoint, response = await self._first_answer(queries, top_k)
        try:
            results = parse_reply(response, url=endpoint.url, queries=queries, top_k=top_k)
        except Rejected:
            raise
        except RetrieverError as error:
            self._endpoints.failed(endpoint, str(error))
            raise
        self._endpoints.succeeded(endpoint)
        return results

    async def _first_answer(self, queries: Sequence[str], top_k: int) -> tuple[Endpoint, httpx.Response]:
        """The first answer that is not a 5xx, and who gave it. In an outage no attempt is the last: it says nothing
        about the queries."""
        reason, attempt = "no answer", 0
        try:
            async with asyncio.timeout(self._deadline_seconds) as deadline:
                while attempt < self._max_attempts or self._endpoints.is_outage:
                    endpoint = await self._pick(deadline)
                    attempt += 1
                    answer = await self._attempt(endpoint, queries, top_k)
                    if isinstance(answer, httpx.Response):
                        return endpoint, answer
                    reason = answer.reason
                    if attempt < self._max_attempts and not self._endpoints.is_outage:
                        await asyncio.sleep(max(self._backoff(attempt), answer.retry_after_seconds))
        except TimeoutError:
            reason += f", and {self._deadline_seconds:g} seconds are over"
        raise RetrieverError(f"retriever at {endpoint.url} failed: {reason} (attempt {attempt})")

    async def _pick(self, deadline: asyncio.Timeout) -> Endpoint:
        """Who is asked next. The deadline stands still in an outage."""
        clock, due = asyncio.get_running_loop().time, deadline.when()
        assert due is not None
        left_seconds = due - clock()
        deadline.reschedule(None)
        endpoint = await self._endpoints.pick()
        deadline.reschedule(clock() + left_seconds)
        return endpoint

    async def _attempt(self, endpoint: Endpoint, queries: Sequence[str], top_k: int) -> httpx.Response | _Fault:
        """The answer of one service, unless it is a reason to ask again."""
        self._counts += SearchCounts(requests=1)
        try:
            response = await self._post_once(endpoint.url, queries, top_k)
            if response.status_code < 500:
                return response
            fault = _Fault(f"status {response.status_code}", _retry_after_seconds(response))
        except httpx.TransportError as error:
            fault = _Fault(f"{type(error).__name__} {error}".strip())
        except (RetrieverError, asyncio.CancelledError) as error:
            self._count_failure(endpoint, str(error) or "no answer in time")
            raise
        self._count_failure(endpoint, fault.reason)
        return fault

    def _count_failure(self, endpoint: Endpoint, reason: str) -> None:
        self._counts += SearchCounts(failed_requests=1)
        self._endpoints.failed(endpoint, reason)

    async def _post_once(self, url: str, queries: Sequence[str], top_k: int) -> httpx.Response:
        try:
            return await self._client.post(
                f"{url}/retrieve",
                content=request_body(queries, top_k),
                headers={"Content-Type": "application/json"},
            )
        except httpx.DecodingError as error:
            raise RetrieverError(f"{url}/retrieve answered nonsense: {error}") from error

    def _backoff(self, attempt: int) -> float:
        longest = min(self._backoff_seconds * 2.0 ** (attempt - 1), _MAX_BACKOFF_SECONDS)
        return longest * self._jitter.uniform(0.5, 1.0)


_Key = tuple[str, int]
_Outcome = SearchResult | RetrieverError


@dataclass(frozen=True, slots=True)
class _Batch:
    """Queries, each once and in order, on their way to one request."""

    queries: list[str]
    request: asyncio.Task[dict[str, _Outcome]]


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why an attempt failed, and how long the service wants to be left alone."""

    reason: str
    retry_after_seconds: float = 0.0


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"retriever.token_file: {path} cannot be read as ASCII text ({error})") from error
    if not token:
        raise ConfigError(f"retriever.token_file: {path} is empty")
    return token


def _retry_after_seconds(response: httpx.Response) -> float:
    """The wait that the server asks for in seconds; 0 when it names none or gives a date."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else 0.0
