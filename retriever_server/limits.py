"""What a client may send."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retriever_server.responses import json_response


@dataclass(frozen=True, slots=True)
class Limits:
    """Larger bodies, more queries, and more passages in one answer (queries times k) are refused.

    Longer queries are cut, and a higher k is lowered.
    """

    max_body_bytes: int = 32 * 2**20
    max_queries: int = 8192
    max_query_characters: int = 8192
    max_top_k: int = 1000
    max_passages: int = 409_600


class BodyLimit:
    """Answers 413 to a body that is announced as too long, or becomes so while it is read.

    No more than `max_bytes` and one chunk are in memory. What the client goes on sending is read and dropped by
    the server below, so that it gets to the answer.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > self._max_bytes:
            await json_response({"detail": self._detail}, status_code=413)(scope, receive, send)
            return
        num_bytes = 0

        async def receive_and_count() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise HTTPException(413, self._detail)
            return message

        await self._app(scope, receive_and_count, send)

    @property
    def _detail(self) -> str:
        return f"the body is longer than {self._max_bytes:,} bytes: send fewer queries at once"
