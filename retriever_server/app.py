"""`POST /retrieve` as Search-R1's clients know it, and what a supervisor of the service asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from retriever_server.access import BearerToken, is_local
from retriever_server.contract import RetrieveRequest, RetrieveResponse, result_json, searchable
from retriever_server.limits import BodyLimit, Limits
from retriever_server.manifest import Manifest
from retriever_server.metrics import Metrics
from retriever_server.request_log import Log, RequestLog
from retriever_server.responses import ClientGoneError, Problem, SchemaProblem, answer_failures, json_response
from retriever_server.retrievers import Retriever
from retriever_server.service import Opened, Service
from retriever_server.settings import DEFAULT_CACHE_ENTRIES, DEFAULT_TOP_K, Batching

Reload = Callable[[], Awaitable[Manifest | None]]
_Responses = dict[int | str, dict[str, Any]]
_FAILURES: _Responses = {
    400: {"model": Problem, "description": "The body cannot be read."},
    401: {"model": Problem, "description": "The service has a token, and this is not it."},
    413: {"model": Problem, "description": "The body is too long."},
    422: {"model": SchemaProblem, "description": "The request can never succeed as it is."},
    500: {"model": Problem, "description": "The search failed."},
    503: {"model": Problem, "description": "Full, or not ready yet: try again after Retry-After seconds."},
}
_NOT_READY: _Responses = {status: _FAILURES[status] for status in (401, 503)}
T = TypeVar("T")


def create_app(
    retriever: Retriever | None,
    *,
    top_k: int = DEFAULT_TOP_K,
    limits: Limits | None = None,
    batching: Batching | None = None,
    cache_entries: int = DEFAULT_CACHE_ENTRIES,
    token: str | None = None,
    log: Log | None = None,
    open_again: Callable[[], Opened] | None = None,
    reload_everywhere: Reload | None = None,
    num_threads: int = 1,
) -> FastAPI:
    """The service; without a retriever it answers 503 until one is attached or loaded.

    `top_k` is for requests that name none. `cache_entries` answers are kept; 0 turns that off. Clients must send
    the `token`, if there is one. `log` gets an entry a request. `POST /admin/reload` is there if `open_again` is;
    `reload_everywhere` does it where other processes serve the same index. For `num_threads` see MicroBatcher.
    """
    limits = limits or Limits()
    app = FastAPI(title="retriever_server", summary="Search-R1's retrieval contract", docs_url=None, redoc_url=None)
    app.state.service = service = Service(
        cache_entries=cache_entries, batching=batching or Batching(), num_threads=num_threads, open_again=open_again
    )
    if retriever is not None:
        service.attach(retriever)
    _add_retrieval(app, service, top_k, limits)
    _add_supervision(app, service, limits)
    if open_again is not None:
        _add_reload(app, service, reload_everywhere)
    answer_failures(app)
    paths = frozenset(route.path for route in app.routes if isinstance(route, Route))
    # The last one added is the outermost.
    app.add_middleware(BodyLimit, max_bytes=limits.max_body_bytes)
    if token is not None:
        app.add_middleware(BearerToken, token=token)
    app.add_middleware(RequestLog, metrics=service.metrics, paths=paths, log=log)
    return app


def service_of(app: FastAPI) -> Service:
    """What stands behind an app that `create_app` made."""
    service: Service = app.state.service
    return service


def attach_retriever(app: FastAPI, retriever: Retriever, manifest: Manifest | None = None) -> None:
    """From now on the app answers with this retriever; the manifest is for `/info`."""
    service_of(app).attach(retriever, manifest)


def _add_retrieval(app: FastAPI, service: Service, top_k: int, limits: Limits) -> None:
    @app.post("/retrieve", responses={200: {"model": RetrieveResponse}, **_FAILURES})
    async def retrieve(body: RetrieveRequest, request: Request) -> Response:
        """For each query its best passages, in order."""
        # Search-R1 itself reads a topk of 0 as "not given".
        used_top_k = min(body.topk or top_k, limits.max_top_k)
        _check_size(len(body.texts), used_top_k, limits)
        queries = [searchable(text, limits.max_query_characters) for text in body.texts]
        _count(service.metrics, body.texts, limits)
        request.state.num_queries = len(queries)
        answers = await _unless_gone(request, service.served.search(queries, top_k=used_top_k))
        return json_response(await result_json(answers, with_scores=body.return_scores))


def _add_supervision(app: FastAPI, service: Service, limits: Limits) -> None:
    @app.get("/health", responses=_NOT_READY)
    async def health() -> Response:
        """The index is loaded; how many queries wait in this process."""
        return json_response({"status": "ok", "pending_queries": service.served.num_pending})

    @app.get("/live")
    async def live() -> Response:
        """The process answers; whether it can search is `/ready`'s to say."""
        return json_response({"status": "ok"})

    @app.get("/ready", responses={503: _FAILURES[503]})
    async def ready() -> Response:
        """A query of its own was answered: send work here."""
        service.served.check_warm()
        return json_response({"status": "ok"})

    @app.get("/info", responses=_NOT_READY)
    async def info() -> Response:
        """What is served, and what a client may send."""
        return json_response({"index": service.served.manifest, "limits": asdict(limits)})

    @app.get("/metrics", response_class=PlainTextResponse, responses={401: _FAILURES[401]})
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(), headers={"Content-Type": Metrics.content_type})


def _add_reload(app: FastAPI, service: Service, everywhere: Reload | None) -> None:
    async def here() -> Manifest | None:
        return (await service.reload()).manifest

    failures: _Responses = {
        401: _FAILURES[401],
        403: {"model": Problem, "description": "The caller is not on the service's own machine."},
        409: {"model": Problem, "description": "The index on disk cannot be served; the old one serves on."},
        503: _FAILURES[503],
    }

    @app.post("/admin/reload", responses=failures)
    async def reload(request: Request) -> Response:
        """Serve the index as it lies on disk now; answers when that is so, or says why not."""
        if not is_local(request):
            raise HTTPException(403, "the index is reloaded for programs on the service's own machine alone")
        # Before anything is served a load is under way already.
        _ = service.served
        # A caller that is cut off ends no load: its thread cannot be stopped.
        fresh = await asyncio.shield(asyncio.ensure_future((everywhere or here)()))
        return json_response({"status": "ok", "index": fresh})


def _count(metrics: Metrics, texts: Sequence[str], limits: Limits) -> None:
    metrics.queries.inc(len(texts))
    metrics.truncated_queries.inc(sum(len(text) > limits.max_query_characters for text in texts))


def _check_size(num_queries: int, top_k: int, limits: Limits) -> None:
    """Raise RequestValidationError for a request that is too large whatever the load."""
    fault = ""
    if num_queries > limits.max_queries:
        fault = f"List should have at most {limits.max_queries} items"
    elif num_queries * top_k > limits.max_passages:
        fault = f"{num_queries} queries of topk {top_k} are more than {limits.max_passages} passages: ask for fewer"
    if fault:
        raise RequestValidationError([{"loc": ("body", "queries"), "msg": fault, "type": "too_long"}])


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
