"""`POST /retrieve` as Search-R1's clients know it (2503.09516), and `GET /health`.

Overload and not-ready are 503 with Retry-After, which clients retry; never 429, which they do not.
4xx is for what can never succeed. All bodies are JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, Self, TypeVar

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, model_validator

from retriever_server.batching import Answers, MicroBatcher
from retriever_server.errors import OverloadedError
from retriever_server.retrievers import Retriever
from retriever_server.schema import ScoredPassage

DEFAULT_TOP_K = 3
MAX_TOP_K = 1000
MAX_QUERIES = 8192
MAX_QUERY_CHARACTERS = 8192

T = TypeVar("T")


class RetrieveRequest(BaseModel):
    """Either dialect: `queries` (Search-R1, verl, slime) or `query` (SkyRL-gym); others are ignored."""

    queries: Annotated[list[str], Field(max_length=MAX_QUERIES)] | None = None
    query: str | None = None
    topk: Annotated[int, Field(ge=0)] | None = None
    return_scores: bool = False

    @model_validator(mode="after")
    def _has_one_dialect(self) -> Self:
        if (self.queries is None) == (self.query is None):
            raise ValueError("give exactly one of `queries` (a list) and `query` (a string)")
        return self

    @property
    def texts(self) -> list[str]:
        """The queries, cut to 8,192 characters each; half a surrogate pair, which is no text, becomes `?`."""
        queries = self.queries if self.queries is not None else [self.query or ""]
        return [query[:MAX_QUERY_CHARACTERS].encode(errors="replace").decode() for query in queries]


class ClientGoneError(Exception):
    """The client hung up before its answer was there."""


def create_app(retriever: Retriever | None, *, top_k: int = DEFAULT_TOP_K) -> FastAPI:
    """The service; without a retriever it answers 503 until `attach_retriever`.

    `top_k` is for requests that name none.
    """
    app = FastAPI(title="retriever_server", summary="Search-R1's retrieval contract", docs_url=None, redoc_url=None)
    app.state.batcher = None
    if retriever is not None:
        attach_retriever(app, retriever)

    @app.post("/retrieve")
    async def retrieve(body: RetrieveRequest, request: Request) -> Response:
        # Search-R1 itself reads a topk of 0 as "not given".
        search = _batcher(app).search(body.texts, top_k=min(body.topk or top_k, MAX_TOP_K))
        return _json({"result": _result(await _unless_gone(request, search), with_scores=body.return_scores)})

    @app.get("/health")
    async def health() -> Response:
        return _json({"status": "ok", "pending_queries": _batcher(app).num_pending})

    app.add_exception_handler(RequestValidationError, _on_schema_fault)
    app.add_exception_handler(OverloadedError, _on_overload)
    app.add_exception_handler(ClientGoneError, _on_client_gone)
    app.add_exception_handler(Exception, _on_failure)
    return app


def attach_retriever(app: FastAPI, retriever: Retriever) -> None:
    """From now on the app answers with this retriever."""
    app.state.batcher = MicroBatcher(retriever)


def _batcher(app: FastAPI) -> MicroBatcher:
    batcher: MicroBatcher | None = app.state.batcher
    if batcher is None:
        raise OverloadedError("the index and its encoder are still loading", retry_after_seconds=2)
    return batcher


def _result(answers: Answers, *, with_scores: bool) -> list[list[dict[str, Any]]]:
    """Without scores the documents stand bare in the list: slime and others read them so."""
    if with_scores:
        return [[{"document": _document(hit), "score": hit.score} for hit in hits] for hits in answers]
    return [[_document(hit) for hit in hits] for hits in answers]


def _document(hit: ScoredPassage) -> dict[str, str]:
    passage = hit.passage
    return {
        "id": passage.id,
        "title": passage.title,
        "text": passage.text,
        "contents": passage.contents,
        "url": passage.url,
    }


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


def _json(content: object, *, status_code: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status_code, headers, media_type="application/json")


async def _on_schema_fault(request: Request, error: Exception) -> Response:
    """FastAPI's `detail` without its echo of the input, which JSON cannot always carry (NaN, half a pair)."""
    assert isinstance(error, RequestValidationError)
    detail = [{"loc": fault["loc"], "msg": fault["msg"], "type": fault["type"]} for fault in error.errors()]
    return _json({"detail": detail}, status_code=422)


async def _on_overload(request: Request, error: Exception) -> Response:
    assert isinstance(error, OverloadedError)
    headers = {"Retry-After": str(error.retry_after_seconds)}
    return _json({"detail": f"try again: {error}"}, status_code=503, headers=headers)


async def _on_client_gone(request: Request, error: Exception) -> Response:
    return _json({"detail": "the client hung up"}, status_code=503)


async def _on_failure(request: Request, error: Exception) -> Response:
    """Starlette logs the traceback after this answer."""
    return _json({"detail": f"the search failed: {type(error).__name__}"}, status_code=500)
