"""`POST /retrieve` as Search-R1's clients know it, and what a supervisor of the service asks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.routing import Route

from retriever_server.access import BearerToken
from retriever_server.cache import DEFAULT_CACHE_ENTRIES
from retriever_server.contract import RetrieveRequest, result, searchable
from retriever_server.errors import OverloadedError
from retriever_server.limits import BodyLimit, Limits
from retriever_server.manifest import Manifest
from retriever_server.metrics import Metrics
from retriever_server.request_log import Log, RequestLog
from retriever_server.responses import ClientGoneError, answer_failures, json_response
from retriever_server.retrievers import Retriever
from retriever_server.served import ServedIndex

DEFAULT_TOP_K = 3

T = TypeVar("T")


def create_app(
    retriever: Retriever | None,
    *,
    top_k: int = DEFAULT_TOP_K,
    limits: Limits | None = None,
    cache_entries: int = DEFAULT_CACHE_ENTRIES,
    token: str | None = None,
    log: Log | None = None,
) -> FastAPI:
    """The service; without a retriever it answers 503 until `attach_retriever`.

    `top_k` is for requests that name none. `cache_entries` answers are kept; 0 turns that off. Clients must send
    the `token`, if there is one. `log` gets an entry a request.
    """
    limits = limits or Limits()
    app = FastAPI(title="retriever_server", summary="Search-R1's retrieval contract", docs_url=None, redoc_url=None)
    app.state.served = None
    app.state.cache_entries = cache_entries
    app.state.metrics = Metrics(lambda: app.state.served.num_pending if app.state.served is not None else 0)
    if retriever is not None:
        attach_retriever(app, retriever)
    _add_retrieval(app, top_k, limits)
    _add_supervision(app, limits)
    answer_failures(app)
    app.add_middleware(BodyLimit, max_bytes=limits.max_body_bytes)
    if token is not None:
        app.add_middleware(BearerToken, token=token)
    paths = frozenset(route.path for route in app.routes if isinstance(route, Route))
    app.add_middleware(RequestLog, metrics=app.state.metrics, paths=paths, log=log)
    return app


def attach_retriever(app: FastAPI, retriever: Retriever, manifest: Manifest | None = None) -> None:
    """From now on the app answers with this retriever; the manifest is for `/info`."""
    state = app.state
    state.served = ServedIndex(retriever, manifest, metrics=state.metrics, cache_entries=state.cache_entries)


def _add_retrieval(app: FastAPI, top_k: int, limits: Limits) -> None:
    @app.post("/retrieve")
    async def retrieve(body: RetrieveRequest, request: Request) -> Response:
        if len(body.texts) > limits.max_queries:
            raise _too_many_queries(limits)
        queries = [searchable(text, limits.max_query_characters) for text in body.texts]
        _count(app.state.metrics, body.texts, limits)
        request.state.num_queries = len(queries)
        # Search-R1 itself reads a topk of 0 as "not given".
        search = _served(app).search(queries, top_k=min(body.topk or top_k, limits.max_top_k))
        return json_response({"result": result(await _unless_gone(request, search), with_scores=body.return_scores)})


def _add_supervision(app: FastAPI, limits: Limits) -> None:
    @app.get("/health")
    async def health() -> Response:
        return json_response({"status": "ok", "pending_queries": _served(app).num_pending})

    @app.get("/live")
    async def live() -> Response:
        """The process answers; whether it can search is `/ready`'s to say."""
        return json_response({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        """A query of its own was answered: send work here."""
        _served(app).check_warm()
        return json_response({"status": "ok"})

    @app.get("/info")
    async def info() -> Response:
        """What is served, and what a client may send."""
        manifest = _served(app).manifest
        return json_response({"index": manifest, "limits": asdict(limits)})

    @app.get("/metrics")
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(app.state.metrics.text(), headers={"Content-Type": Metrics.content_type})


def _served(app: FastAPI) -> ServedIndex:
    served: ServedIndex | None = app.state.served
    if served is None:
        raise OverloadedError("the index and its encoder are still loading", retry_after_seconds=2)
    return served


def _count(metrics: Metrics, texts: Sequence[str], limits: Limits) -> None:
    metrics.queries.inc(len(texts))
    metrics.truncated_queries.inc(sum(len(text) > limits.max_query_characters for text in texts))


def _too_many_queries(limits: Limits) -> RequestValidationError:
    message = f"List should have at most {limits.max_queries} items"
    return RequestValidationError([{"loc": ("body", "queries"), "msg": message, "type": "too_long"}])


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work returns; it is cancelled, and ClientGoneError raised, when the client hangs up first."""
    working, hanging_up = asyncio.ensure_future(work), asyncio.ensure_future(_hang_up(request))
    try:
        await asyncio.wait([working, hanging_up], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        working.cancel()
        hanging_up.cancel()


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
