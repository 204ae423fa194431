"""What is refused, and that a refusal is one line of JSON that costs little."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import orjson
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever_server.access import read_token
from retriever_server.app import create_app
from retriever_server.errors import ServingError
from retriever_server.limits import Limits
from tests.retriever_server.conftest import EchoRetriever, get, post
from tests.retriever_server.test_metrics import read_metrics


def send(app: FastAPI, content: bytes | AsyncIterator[bytes], headers: dict[str, str]) -> httpx.Response:
    """The answer to one POST, its body sent as it is."""

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.post(
                "/retrieve", content=content, headers={"Content-Type": "application/json", **headers}
            )

    return asyncio.run(ask())


async def chunks(body: Iterator[bytes], sent: list[int]) -> AsyncIterator[bytes]:
    """The chunks; `sent` keeps their sizes."""
    for chunk in body:
        sent.append(len(chunk))
        yield chunk


def body_of(num_bytes: int) -> bytes:
    """A good request of exactly that many bytes."""
    body = orjson.dumps({"query": "a", "pad": ""})
    return body[:-2] + b"x" * (num_bytes - len(body)) + body[-2:]


@pytest.mark.parametrize("claimed", ["its length", "nothing", "10", "0", "ten"])
def test_a_body_above_the_limit_is_413_whatever_it_claims(claimed: str) -> None:
    """Would catch a limit that believes Content-Length, and a body kept in memory whole before it is refused."""
    echo = EchoRetriever()
    app = create_app(echo, limits=Limits(max_body_bytes=1000))
    headers = {} if claimed in ("its length", "nothing") else {"Content-Length": claimed}
    sent: list[int] = []
    endless = (b" " * 100 for _ in range(1000))
    response = send(app, body_of(1001) if claimed == "its length" else chunks(endless, sent), headers)
    assert response.status_code == 413
    assert response.content.count(b"\n") == 0
    assert response.json() == {"detail": "the body is longer than 1,000 bytes: send fewer queries at once"}
    assert sum(sent) <= 1200
    assert echo.batches == []


@pytest.mark.parametrize("announced", ["9" * 30, "0" * 30 + "1"])
def test_a_length_of_many_digits_is_read_as_a_number(announced: str) -> None:
    """Would catch a length above 64 bits that crashes, or one with leading zeros that counts as large."""
    app = create_app(EchoRetriever(), limits=Limits(max_body_bytes=1000))
    response = send(app, body_of(50), {"Content-Length": announced})
    assert response.status_code == (413 if announced.startswith("9") else 200)


@settings(max_examples=30)
@given(st.integers(950, 1050), st.integers(1, 400))
def test_the_limit_is_exact_however_the_body_is_cut(num_bytes: int, chunk_bytes: int) -> None:
    """Would catch a limit off by one, or one that counts each chunk for itself."""
    app, body = create_app(EchoRetriever(), limits=Limits(max_body_bytes=1000)), body_of(num_bytes)
    cut = (body[start : start + chunk_bytes] for start in range(0, num_bytes, chunk_bytes))
    assert send(app, chunks(cut, []), {}).status_code == (200 if num_bytes <= 1000 else 413)


def test_the_number_of_queries_is_limited_exactly() -> None:
    """Would catch a limit off by one, or one that `/info` does not tell of."""
    app = create_app(EchoRetriever(), limits=Limits(max_queries=3))
    three, four = post(app, {"queries": ["a"] * 3}, {"queries": ["a"] * 4})
    assert (three.status_code, four.status_code) == (200, 422)
    assert four.json()["detail"][0]["loc"] == ["body", "queries"]
    assert read_metrics(app)["retriever_queries_total"] == 3


def test_a_long_query_is_cut_and_counted_and_a_high_k_lowered() -> None:
    """Would catch a query of a megabyte that reaches the tokenizer, and a k that asks for the whole corpus."""
    echo = EchoRetriever()
    app = create_app(echo, limits=Limits(max_query_characters=4, max_top_k=2))
    (response,) = post(app, {"queries": ["abcd", "abcde", "é" * 5], "topk": 50})
    assert [len(hits) for hits in response.json()["result"]] == [2, 2, 2]
    assert echo.batches == [["abcd", "éééé"]]
    assert read_metrics(app)["retriever_truncated_queries_total"] == 2


def test_with_a_token_only_the_probes_are_open() -> None:
    """Would catch a path that was forgotten, among them the metrics and the API's own description."""
    app = create_app(EchoRetriever(), token="s3cret")
    closed = get(app, "/health", "/info", "/metrics", "/openapi.json", "/nowhere")
    for response in [*closed, *post(app, {"query": "a"})]:
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert "Authorization: Bearer <token>" in response.json()["detail"]
        assert "s3cret" not in response.text
    live, ready = get(app, "/live", "/ready")
    assert (live.status_code, ready.status_code) == (200, 503)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer s3cret", 200),
        ("bearer  s3cret", 200),
        ("Bearer s3cre", 401),
        ("Bearer s3crett", 401),
        ("Bearer ", 401),
        ("Bearer", 401),
        ("Basic s3cret", 401),
        ("s3cret", 401),
        ("Bearer s3cr\u00e9t", 401),
        ("", 401),
    ],
)
def test_only_the_token_opens(header: str, status: int) -> None:
    """Would catch a comparison by prefix, another scheme let through, and a 500 for a token that is not ASCII."""
    app = create_app(EchoRetriever(), token="s3cret")
    authorization = {b"authorization": header.encode("latin-1")}

    async def ask() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return (await client.post("/retrieve", json={"query": "a"}, headers=authorization)).status_code

    assert asyncio.run(ask()) == status


@pytest.mark.parametrize("content", [None, b"", b" \n", b"two words\n", b"two\nlines", "caf\u00e9".encode(), b"\x00"])
def test_a_token_file_without_a_token_is_told(content: bytes | None, tmp_path: Path) -> None:
    """Would catch an empty token, which every client knows, or a traceback for a mistyped path."""
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ServingError, match="token file"):
        read_token(path)


def test_the_newline_of_a_token_file_is_not_the_tokens(tmp_path: Path) -> None:
    """Would catch a token that no client can send, because an editor ended its line."""
    path = tmp_path / "token"
    path.write_text("s3cret\r\n")
    assert read_token(path) == "s3cret"
