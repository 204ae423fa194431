"""The outermost layer of the app: every request is counted here, also one that nobody answered."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retriever_server.metrics import Metrics
from retriever_server.responses import failure


class RequestLog:
    """Counts answers by path and status, and answers 500 for an error that nobody caught."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, paths: frozenset[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception as error:
            if not status:
                await failure(error)(scope, receive, send_and_note)
            raise
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.count_request(path, status)
