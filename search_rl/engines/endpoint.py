"""One POST to a served model, tried a bounded number of times; the engines over HTTP share it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from search_rl.errors import ConfigError, EngineError, RequestError

_MAX_BACKOFF_SECONDS = 30.0
_TRANSIENT = frozenset({408, 409, 425, 429})
# A key or a name that is wrong for one request is wrong for all.
_HOPELESS = frozenset({401, 403, 404, 405})


class Endpoint:
    """The `/v1` of an OpenAI-style server, to be used as an async context manager inside one event loop.

    `url` is the server's base, with or without `/v1`. A request is tried up to `max_attempts` times, on transport
    errors, timeouts, 408, 409, 425, 429 and 5xx (heeding Retry-After), within `deadline_seconds` in all.
    `timeout_seconds` limits one attempt; `backoff_seconds` is the first wait and doubles up to 30 s, with jitter.
    `token_file` holds the bearer token that the server wants.
    """

    def __init__(
        self,
        url: str,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        timeout_seconds: float = 300.0,
        max_attempts: int = 5,
        deadline_seconds: float = 900.0,
        backoff_seconds: float = 1.0,
        token_file: Path | None = None,
    ) -> None:
        self.url = _checked(url).rstrip("/").removesuffix("/v1") + "/v1"
        self._max_attempts = max_attempts
        self._deadline_seconds = deadline_seconds
        self._backoff_seconds = backoff_seconds
        self._jitter = random.Random()
        headers = {} if token_file is None else {"Authorization": f"Bearer {_token(token_file)}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(transport=transport, timeout=timeout_seconds, headers=headers, limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The content of a good response.

        Raises RequestError when the tries are used up or the request is refused, EngineError when every request would
        be (a wrong token, an unknown model).
        """
        response = await self.answer(path, body)
        if response.status_code != httpx.codes.OK:
            raise _error_of(response.status_code)(self.refusal(path, response))
        return response.content

    async def answer(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """The first response that is not a passing trouble. Raises RequestError when the tries are used up."""
        attempt, reason = 0, "no answer"
        try:
            async with asyncio.timeout(self._deadline_seconds):
                while True:
                    attempt += 1
                    wait_seconds = self._backoff(attempt)
                    try:
                        response = await self._client.post(f"{self.url}{path}", json=dict(body))
                    except httpx.RequestError as error:
                        reason = f"no answer from {self.url}{path}: {type(error).__name__} {error}".rstrip()
                    else:
                        if not _is_transient(response.status_code):
                            return response
                        reason = self.refusal(path, response)
                        wait_seconds = max(wait_seconds, _retry_after_seconds(response))
                    if attempt == self._max_attempts:
                        break
                    await asyncio.sleep(wait_seconds)
        except TimeoutError:
            reason += f", and {self._deadline_seconds:g} seconds are over"
        raise RequestError(f"{reason} (attempt {attempt})")

    def refusal(self, path: str, response: httpx.Response) -> str:
        """What a response that is not a good one says, on one line."""
        text = " ".join(response.text[:300].split())
        return f"{self.url}{path} answered {response.status_code}: {text}"

    def _backoff(self, attempt: int) -> float:
        longest = min(self._backoff_seconds * 2.0 ** (attempt - 1), _MAX_BACKOFF_SECONDS)
        return longest * self._jitter.uniform(0.5, 1.0)


def _is_transient(status_code: int) -> bool:
    return status_code >= 500 or status_code in _TRANSIENT


def _error_of(status_code: int) -> type[EngineError]:
    return EngineError if status_code in _HOPELESS else RequestError


def _retry_after_seconds(response: httpx.Response) -> float:
    """The wait that the server asks for in seconds; 0 when it names none or gives a date."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else 0.0


def _checked(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"endpoint {url!r} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"endpoint {url!r} must look like http://127.0.0.1:8001/v1")
    return url


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"endpoint token file {path} cannot be read as ASCII text ({error})") from error
    if not token:
        raise ConfigError(f"endpoint token file {path} is empty")
    return token
