"""The id and the log line of a request."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Mapping
from typing import Any

import httpx
import orjson
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever_server.app import create_app
from retriever_server.limits import Limits
from retriever_server.request_log import log_to_stderr
from tests.retriever_server.conftest import EchoRetriever


def ask(app: FastAPI, path: str, headers: Mapping[bytes, bytes] | None = None, **body: Any) -> httpx.Response:
    """The answer to a POST."""

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post(path, json=body, headers=dict(headers or {}))

    return asyncio.run(post())


def test_a_line_says_who_asked_what_and_how_it_went() -> None:
    """Would catch a missing line, one that leaks queries or a query string, and one per query in place of request."""
    lines: list[Mapping[str, Any]] = []
    app = create_app(EchoRetriever(), log=lines.append)
    response = ask(app, "/retrieve?key=private", {b"x-request-id": b"job-7/step.3"}, queries=["private", "b"])
    assert response.headers["x-request-id"] == "job-7/step.3"
    (line,) = lines
    assert {name: line[name] for name in ("id", "client", "method", "path", "status", "queries")} == {
        "id": "job-7/step.3",
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/retrieve",
        "status": 200,
        "queries": 2,
    }
    assert 0 < line["seconds"] < 10
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"])
    assert b"private" not in orjson.dumps(line)


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/retrieve", {"query": "explode"}, {b"authorization": b"Bearer t"}, 500),
        ("/retrieve", {}, {b"authorization": b"Bearer t"}, 422),
        ("/retrieve", {"query": "a" * 200}, {b"authorization": b"Bearer t"}, 413),
        ("/nowhere", {}, {b"authorization": b"Bearer t"}, 404),
        ("/retrieve", {"query": "a"}, {}, 401),
    ],
)
def test_failures_too_have_an_id_and_a_line(
    path: str, body: dict[str, str], headers: dict[bytes, bytes], status: int
) -> None:
    """Would catch the one request that somebody looks for missing from the log."""
    lines: list[Mapping[str, Any]] = []
    app = create_app(EchoRetriever(), token="t", limits=Limits(max_body_bytes=100), log=lines.append)
    response = ask(app, path, headers, **body)
    assert response.status_code == status
    assert response.json()["detail"]
    assert [(line["status"], line["id"]) for line in lines] == [(status, response.headers["x-request-id"])]


@pytest.fixture(scope="module")
def logging_app() -> tuple[FastAPI, list[Mapping[str, Any]]]:
    """The service, and the lines that it logs."""
    lines: list[Mapping[str, Any]] = []
    return create_app(EchoRetriever(), log=lines.append), lines


@settings(max_examples=60)
@given(st.binary(max_size=200) | st.from_regex(rb"[A-Za-z0-9._-]{1,140}", fullmatch=True))
def test_any_id_comes_back_or_is_replaced(
    logging_app: tuple[FastAPI, list[Mapping[str, Any]]], given_id: bytes
) -> None:
    """Would catch an id that breaks a log line or a header, or one cut short so that it matches nothing."""
    app, lines = logging_app
    lines.clear()
    response = ask(app, "/retrieve", {b"x-request-id": given_id}, query="a")
    found = response.headers["x-request-id"]
    is_sane = re.fullmatch(rb"[A-Za-z0-9._:/+=@-]{1,128}", given_id)
    assert found.encode() == given_id if is_sane else re.fullmatch("[0-9a-f]{32}", found)
    assert [line["id"] for line in lines] == [found]


def test_a_line_on_stderr_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Would catch a path with a line break that forges a second entry."""
    app = create_app(EchoRetriever(), log=log_to_stderr)
    ask(app, "/a%0A%22b%C3%A9%FF")
    (line,) = capsys.readouterr().err.splitlines()
    assert orjson.loads(line)["path"].startswith('/a\n"bé')


def test_a_closed_log_does_not_fail_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a service that stops answering because nobody reads its log any longer."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    assert ask(create_app(EchoRetriever(), log=log_to_stderr), "/retrieve", query="a").status_code == 200
