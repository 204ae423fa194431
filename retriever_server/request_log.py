"""The outermost layer of the app: every request gets an id, is counted, and is logged if that is wanted."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retriever_server.metrics import Metrics
from retriever_server.responses import failure

Log = Callable[[Mapping[str, Any]], None]

REQUEST_ID = "X-Request-ID"
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestLog:
    """Counts answers by path and status, logs them with the client's request id, or one made for it.

    The id comes back in the answer's headers. An error that nobody caught is answered 500 here.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, paths: frozenset[str], log: Log | None) -> None:
        self._app, self._metrics, self._paths, self._log = app, metrics, paths, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, request_id = time.perf_counter(), 0, _request_id(Headers(scope=scope))

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            if not status:
                await failure(error)(scope, receive, send_with_id)
            raise
        finally:
            self._metrics.count_request(scope["path"] if scope["path"] in self._paths else "other", status)
            if self._log is not None:
                self._log(_entry(scope, request_id, status, time.perf_counter() - start))


def log_to_stderr(entry: Mapping[str, Any]) -> None:
    """One line of JSON. A log that nobody reads any longer does not fail the request."""
    with contextlib.suppress(OSError, ValueError):
        print(orjson.dumps(entry).decode(), file=sys.stderr, flush=True)


def _entry(scope: Scope, request_id: str, status: int, seconds: float) -> dict[str, Any]:
    """Neither the queries nor the query string: they may be private. Status 0 is a request cut off unanswered."""
    client = scope.get("client")
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "id": request_id,
        "client": client[0] if client else None,
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "seconds": round(seconds, 6),
        "queries": scope.get("state", {}).get("num_queries"),
    }


def _request_id(headers: Headers) -> str:
    """The client's own unless it is long or odd: it goes into logs and headers."""
    given = headers.get(REQUEST_ID, "")
    return given if _SANE_ID.fullmatch(given) else uuid4().hex
