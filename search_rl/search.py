"""The client of `POST /retrieve`: the only place that retries.

A failure is a RetrieverError and never an empty result (invariant 7). The wire format is Search-R1's, so that
its own server can be asked too.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from search_rl.errors import ConfigError, RetrieverError
from search_rl.types import Passage, ScoredPassage, SearchResult

_COALESCE_SECONDS = 0.003
_MAX_QUERIES_PER_REQUEST = 256
_MAX_BACKOFF_SECONDS = 8.0


class Searcher(Protocol):
    """Anything that answers a query."""

    async def search(self, query: str, top_k: int) -> SearchResult:
        """At most `top_k` passages, best first. Raises RetrieverError when the search fails."""
        ...


class SearchClient:
    """A searcher over HTTP, to be used as an async context manager inside one event loop.

    Queries that arrive within a few milliseconds share a request, equal ones a place in it. A request is
    tried up to `max_attempts` times, on transport errors and 5xx (heeding Retry-After), within
    `deadline_seconds` in all. A 4xx is final; if several queries shared the request, each goes once more
    alone, so that a bad one spoils no other. `timeout_seconds` limits one attempt; `backoff_seconds` is the
    first wait and doubles up to 8 s, with jitter. `token_file` holds the bearer token that the service wants.
    """

    def __init__(
        self,
        url: str,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        timeout_seconds: float = 30.0,
        max_attempts: int = 6,
        deadline_seconds: float = 120.0,
        backoff_seconds: float = 0.5,
        token_file: Path | None = None,
    ) -> None:
        self.url = _checked_url(url)
        headers = {} if token_file is None else {"Authorization": f"Bearer {_token(token_file)}"}
        self._max_attempts = max_attempts
        self._deadline_seconds = deadline_seconds
        self._backoff_seconds = backoff_seconds
        self._jitter = random.Random()
        self._client = httpx.AsyncClient(transport=transport, timeout=timeout_seconds, headers=headers)
        self._batches: dict[int, _Batch] = {}
        self._requests: set[asyncio.Task[dict[str, _Outcome]]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        await self._client.aclose()

    async def search(self, query: str, top_k: int) -> SearchResult:
        """See `Searcher.search`."""
        batch = self._batches.get(top_k)
        if batch is None or not batch.is_open:
            batch = self._batches[top_k] = _Batch(top_k)
            request = batch.request = asyncio.create_task(self._send(batch))
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)
        batch.queries[query] = None
        return await self._outcome(query, batch)

    async def _outcome(self, query: str, batch: _Batch) -> SearchResult:
        """What became of one query; a caller that gives up does not stop the request for the others."""
        assert batch.request is not None
        try:
            outcome = (await asyncio.shield(batch.request))[query]
        except asyncio.CancelledError:
            if not batch.request.cancelled():
                raise
            raise RetrieverError(f"the client of {self.url} was closed during a search") from None
        if isinstance(outcome, RetrieverError):
            raise RetrieverError(str(outcome)) from outcome
        return outcome

    async def check(self) -> None:
        """Ask once, without a query, and raise RetrieverError unless a retriever answers."""
        try:
            response = await self._post_once([], top_k=1)
        except httpx.TransportError as error:
            raise RetrieverError(f"no retriever at {self.url}: start one with search-rl serve") from error
        if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            raise RetrieverError(f"the retriever at {self.url} is not ready yet: try again in a moment")
        self._parse(response, [], top_k=1)

    async def info(self) -> Mapping[str, Any] | None:
        """What the service says of its index, None where it says nothing: Search-R1's own has no `/info`. Asks once."""
        try:
            response = await self._client.get(f"{self.url}/info")
            told = response.json() if response.status_code == httpx.codes.OK else None
        except httpx.RequestError as error:
            raise RetrieverError(f"{self.url}/info: {type(error).__name__} {error}".rstrip()) from error
        except ValueError:
            return None
        return told if isinstance(told, Mapping) else None

    async def _send(self, batch: _Batch) -> dict[str, _Outcome]:
        """Wait for company, then ask."""
        await asyncio.sleep(_COALESCE_SECONDS)
        batch.is_sent = True
        return await self._outcomes(list(batch.queries), batch.top_k)

    async def _outcomes(self, queries: Sequence[str], top_k: int) -> dict[str, _Outcome]:
        """What became of each query."""
        try:
            results = self._parse(await self._post(queries, top_k), queries, top_k)
        except _Rejected as error:
            if len(queries) == 1:
                return {queries[0]: error}
            alone = await asyncio.gather(*(self._outcomes([query], top_k) for query in queries))
            return {query: outcome for outcomes in alone for query, outcome in outcomes.items()}
        except RetrieverError as error:
            return dict.fromkeys(queries, error)
        return dict(zip(queries, results, strict=True))

    async def _post(self, queries: Sequence[str], top_k: int) -> httpx.Response:
        """The first response that is not a 5xx."""
        attempt, reason = 0, "no answer"
        try:
            async with asyncio.timeout(self._deadline_seconds):
                while True:
                    attempt += 1
                    wait_seconds = self._backoff(attempt)
                    try:
                        response = await self._post_once(queries, top_k)
                    except httpx.TransportError as error:
                        reason = f"{type(error).__name__} {error}".strip()
                    else:
                        if response.status_code < 500:
                            return response
                        reason = f"status {response.status_code}"
                        wait_seconds = max(wait_seconds, _retry_after_seconds(response))
                    if attempt == self._max_attempts:
                        break
                    await asyncio.sleep(wait_seconds)
        except TimeoutError:
            reason += f", and {self._deadline_seconds:g} seconds are over"
        raise RetrieverError(f"retriever at {self.url} failed: {reason} (attempt {attempt})")

    async def _post_once(self, queries: Sequence[str], top_k: int) -> httpx.Response:
        body = {"queries": list(queries), "topk": top_k, "return_scores": True}
        # ASCII JSON: a query that is no valid Unicode must be the server's to refuse, not ours to crash on.
        try:
            return await self._client.post(
                f"{self.url}/retrieve",
                content=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
            )
        except httpx.DecodingError as error:
            raise RetrieverError(f"{self.url}/retrieve answered nonsense: {error}") from error

    def _backoff(self, attempt: int) -> float:
        longest = min(self._backoff_seconds * 2.0 ** (attempt - 1), _MAX_BACKOFF_SECONDS)
        return longest * self._jitter.uniform(0.5, 1.0)

    def _parse(self, response: httpx.Response, queries: Sequence[str], top_k: int) -> list[SearchResult]:
        """One result a query. Raises RetrieverError for anything but a well-formed reply."""
        if 400 <= response.status_code < 500:
            raise _Rejected(f"{self.url}/retrieve refused: status {response.status_code} {response.text[:200]}")
        if response.status_code != httpx.codes.OK:
            raise RetrieverError(f"{self.url}/retrieve answered with status {response.status_code}")
        try:
            rows = _Reply.model_validate_json(response.content).result
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(str(part) for part in fault["loc"])
            raise RetrieverError(
                f"{self.url}/retrieve answered nonsense: {where} {fault['msg']}".replace("  ", " ")
            ) from error
        if len(rows) != len(queries):
            raise RetrieverError(f"{self.url}/retrieve answered {len(queries)} queries with {len(rows)} lists")
        return [
            SearchResult(query, tuple(hit.scored_passage() for hit in hits[:top_k]))
            for query, hits in zip(queries, rows, strict=True)
        ]


class _Rejected(RetrieverError):
    """A 4xx: the same request would be refused again."""


_Outcome = SearchResult | RetrieverError


@dataclass(slots=True)
class _Batch:
    """Queries, each once and in order, on their way to one request."""

    top_k: int
    queries: dict[str, None] = field(default_factory=dict)
    request: asyncio.Task[dict[str, _Outcome]] | None = None
    is_sent: bool = False

    @property
    def is_open(self) -> bool:
        """True while another query may join."""
        return not self.is_sent and len(self.queries) < _MAX_QUERIES_PER_REQUEST


class _Document(BaseModel):
    """The part of a corpus row that counts: line one of `contents` is the title, the rest is the text."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    contents: str
    id: str = ""
    url: str | None = None


class _Hit(BaseModel):
    """Online servers of the Search-R1 family give no score."""

    document: _Document
    score: float = Field(0.0, allow_inf_nan=False)

    def scored_passage(self) -> ScoredPassage:
        """Contents without a line break are all text: a title alone would tell the policy nothing."""
        first, newline, rest = self.document.contents.partition("\n")
        title, text = (first, rest) if newline else ("", first)
        return ScoredPassage(
            Passage(self.document.id, _unquoted(title.strip()), text, self.document.url or ""), self.score
        )


class _Reply(BaseModel):
    """The body of a good reply: a list of hits for each query."""

    result: list[list[_Hit]]


def _unquoted(title: str) -> str:
    is_quoted = len(title) >= 2 and title.startswith('"') and title.endswith('"')
    return title[1:-1] if is_quoted else title


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"retriever.token_file: {path} cannot be read as ASCII text ({error})") from error
    if not token:
        raise ConfigError(f"retriever.token_file: {path} is empty")
    return token


def _checked_url(url: str) -> str:
    """The base URL. Raises ConfigError for what is no http URL."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"retriever url {url!r} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"retriever url {url!r} must look like http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/retrieve")


def _retry_after_seconds(response: httpx.Response) -> float:
    """The wait that the server asks for in seconds; 0 when it names none or gives a date."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else 0.0
