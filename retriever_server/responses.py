"""All bodies are JSON, those of failures too; a failure says what it is in `detail`.

Overload and not-ready are 503 with Retry-After, which clients retry; never 429, which they do not.
4xx is for what can never succeed.
"""

from __future__ import annotations

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from retriever_server.errors import OverloadedError, ReloadError


class Problem(BaseModel):
    """The body of a failure."""

    detail: str


class SchemaFault(BaseModel):
    """Where a request is wrong, and how."""

    loc: list[str | int]
    msg: str
    type: str


class SchemaProblem(BaseModel):
    """The body of a 422, as FastAPI's clients know it."""

    detail: list[SchemaFault]


class ClientGoneError(Exception):
    """The client hung up before its answer was there."""


def json_response(content: object, *, status_code: int = 200, headers: dict[str, str] | None = None) -> Response:
    """One line of JSON; bytes are JSON already."""
    body = content if isinstance(content, bytes) else orjson.dumps(content)
    return Response(body, status_code, headers, media_type="application/json")


def answer_failures(app: FastAPI) -> None:
    """From now on the app tells failures as above."""
    app.add_exception_handler(RequestValidationError, _on_schema_fault)
    app.add_exception_handler(OverloadedError, _on_overload)
    app.add_exception_handler(ReloadError, _on_failed_reload)
    app.add_exception_handler(ClientGoneError, _on_client_gone)


async def _on_schema_fault(request: Request, error: Exception) -> Response:
    """FastAPI's `detail` without its echo of the input, which JSON cannot always carry (NaN, half a pair)."""
    assert isinstance(error, RequestValidationError)
    detail = [{"loc": fault["loc"], "msg": fault["msg"], "type": fault["type"]} for fault in error.errors()]
    return json_response({"detail": detail}, status_code=422)


async def _on_overload(request: Request, error: Exception) -> Response:
    assert isinstance(error, OverloadedError)
    headers = {"Retry-After": str(error.retry_after_seconds)}
    return json_response({"detail": f"try again: {error}"}, status_code=503, headers=headers)


async def _on_failed_reload(request: Request, error: Exception) -> Response:
    return json_response({"detail": str(error)}, status_code=409)


async def _on_client_gone(request: Request, error: Exception) -> Response:
    """Nobody reads it: the status, nginx's own, is for the counts alone."""
    return json_response({"detail": "the client hung up"}, status_code=499)


def failure(error: Exception) -> Response:
    """The answer to an error that nobody foresaw; its traceback is for the log alone."""
    return json_response({"detail": f"the search failed: {type(error).__name__}"}, status_code=500)
