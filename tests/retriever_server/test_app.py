"""Search-R1's contract over the real app: each dialect's golden JSON, the reference's defects, any input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever_server.app import attach_retriever, create_app
from retriever_server.errors import OverloadedError
from retriever_server.retrievers import Retriever
from retriever_server.schema import ScoredPassage
from tests.retriever_server.bag_of_words import PLANETS
from tests.retriever_server.conftest import EchoRetriever, post

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_wire_is_what_clients_read(path: Path, planets_app: FastAPI) -> None:
    """Would catch a renamed, missing or wrapped field, which breaks every client of that dialect."""
    golden = json.loads(path.read_text())
    (response,) = post(planets_app, golden["request"])
    assert response.status_code == golden["status_code"]
    assert response.headers["content-type"] == "application/json"
    assert response.json() == golden["response"]


@pytest.mark.parametrize("num_queries", [1, 2, 3])
def test_without_scores_every_query_has_its_own_documents(num_queries: int, planets_app: FastAPI) -> None:
    """Would catch the reference's unpacking: 500 for 1 or 3 queries, the first one's documents for 2."""
    queries = ["Mars Phobos", "Earth water", "Jupiter storm"][:num_queries]
    (response,) = post(planets_app, {"queries": queries, "topk": 2, "return_scores": False})
    result = response.json()["result"]
    assert [hits[0]["id"] for hits in result] == ["mars", "earth", "jupiter"][:num_queries]
    assert [len(hits) for hits in result] == [2] * num_queries


@pytest.mark.parametrize("topk", [6, 7, 100, 10**6, 10**30])
def test_a_topk_above_the_corpus_gives_each_passage_once(topk: int, planets_app: FastAPI) -> None:
    """Would catch the last passage returned in place of hits that do not exist."""
    body = b'{"query": "moon", "topk": %d, "return_scores": true}' % topk
    (response,) = post(planets_app, body)
    (hits,) = response.json()["result"]
    assert sorted(hit["document"]["id"] for hit in hits) == sorted(passage.id for passage in PLANETS)


@pytest.mark.parametrize("topk", [None, 0])
def test_a_topk_that_is_null_or_zero_is_the_default(topk: int | None, planets: Retriever) -> None:
    """Would catch clients that send topk null (verl's default) and get nothing, or an error."""
    (response,) = post(create_app(planets, top_k=4), {"query": "moon", "topk": topk})
    assert len(response.json()["result"][0]) == 4


def test_order_and_duplicates_are_kept(planets_app: FastAPI) -> None:
    """Would catch a server that answers equal queries once, and so shifts all later answers."""
    (response,) = post(planets_app, {"queries": ["Mars", "Venus", "Mars", "", "Mars"], "topk": 1})
    assert [hits[0]["id"] for hits in response.json()["result"]] == [
        "mars",
        "venus",
        "mars",
        "mercury",
        "mars",
    ]


def test_many_requests_at_once_get_their_own_answers(planets_app: FastAPI) -> None:
    """Would catch answers that are mixed up between requests of one batch."""
    names = [passage.id for passage in PLANETS] * 8
    responses = post(planets_app, *({"query": name, "topk": 1 + n % 3} for n, name in enumerate(names)))
    found = [response.json()["result"][0] for response in responses]
    assert [hits[0]["id"] for hits in found] == names
    assert [len(hits) for hits in found] == [1 + n % 3 for n in range(len(names))]


def test_an_overlong_query_is_cut_not_refused(planets_app: FastAPI) -> None:
    """Would catch a 4xx that verl would show to the policy as an observation."""
    (response,) = post(planets_app, {"query": "Mars " * 100_000})
    assert response.json()["result"][0][0]["id"] == "mars"


def test_a_query_of_half_a_surrogate_pair_is_searched_as_text() -> None:
    """Would catch a 500 from the tokenizer, which takes no lone surrogates."""
    echo = EchoRetriever()
    (response,) = post(create_app(echo), b'{"queries": ["caf\\u00e9 \\ud83d", "\\ud83d\\ude00"]}')
    assert response.status_code == 200
    assert echo.batches == [["café ?", "😀"]]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"queries": "Mars"}',
        b'{"queries": [1]}',
        b'{"queries": [null]}',
        b'{"query": ["Mars"]}',
        b'{"query": "Mars", "queries": ["Mars"]}',
        b'{"query": null, "queries": null}',
        b'{"query": "Mars", "topk": -1}',
        b'{"query": "Mars", "topk": NaN}',
        b'{"query": "Mars", "topk": 1e400}',
        b'{"query": "Mars", "topk": "many"}',
        b'{"query": "Mars", "return_scores": "perhaps"}',
        b'{"query": "\xff"}',
        b'{"query": "Mars", "topk": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        json.dumps({"queries": ["x"] * 8193}).encode(),
    ],
)
def test_what_can_never_succeed_is_a_4xx_in_json(body: bytes, planets_app: FastAPI) -> None:
    """Would catch a 500 for bad input, among it input that the error's own echo cannot carry."""
    (response,) = post(planets_app, body)
    assert response.status_code in (400, 422)
    assert response.json()["detail"]
    assert len(response.content) < 2000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=8,
)
plausible_bodies = st.fixed_dictionaries(
    {},
    optional={
        "queries": st.lists(st.text(max_size=20), max_size=5) | json_values,
        "query": st.text(max_size=20) | json_values,
        "topk": st.integers(-2, 2000) | json_values,
        "return_scores": st.booleans() | json_values,
        "top_n": json_values,
    },
)


@pytest.fixture(scope="module")
def lasting_app(planets: Retriever) -> FastAPI:
    """The service over the six passages, made once."""
    return create_app(planets, cache_entries=0)


@settings(max_examples=100)
@given(plausible_bodies | json_values)
def test_no_request_is_a_server_error(lasting_app: FastAPI, body: Any) -> None:
    """Would catch a 500, a body that is not JSON, a result of the wrong length, or a NaN score."""
    (response,) = post(lasting_app, json.dumps(body).encode())
    content = json.loads(response.content, parse_constant=pytest.fail)
    if response.status_code != 200:
        assert response.status_code in (400, 422)
        assert content["detail"]
        return
    queries = body["queries"] if body.get("queries") is not None else [body["query"]]
    assert len(content["result"]) == len(queries)


def test_without_a_retriever_all_is_503_until_one_is_attached(planets: Retriever) -> None:
    """Would catch a health check that passes too early, or a status that clients do not retry."""
    app = create_app(None)

    async def health() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.get("/health")

    for response in (asyncio.run(health()), *post(app, {"query": "Mars"})):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "2"
        assert "still loading" in response.json()["detail"]
    attach_retriever(app, planets)
    assert asyncio.run(health()).json() == {"status": "ok", "pending_queries": 0}
    assert post(app, {"query": "Mars"})[0].status_code == 200


def test_a_client_that_hangs_up_is_not_searched_for() -> None:
    """Would catch work for clients that are gone: FastAPI alone goes on with it."""
    echo = EchoRetriever(is_open=False)
    app = create_app(echo)

    async def post_and_hang_up(query: str) -> None:
        messages = [{"type": "http.request", "body": json.dumps({"query": query}).encode(), "more_body": False}]

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0.02)
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None: ...

        headers = [(b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/retrieve",
            "query_string": b"",
            "headers": headers,
        }
        await app(scope, receive, send)

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            first = asyncio.create_task(client.post("/retrieve", json={"query": "first"}))
            await asyncio.sleep(0.05)
            await post_and_hang_up("gone")
            echo.gate.set()
            assert (await first).status_code == 200
            assert (await client.post("/retrieve", json={"query": "last"})).status_code == 200

    asyncio.run(ask())
    assert echo.batches == [["first"], ["last"]]


class FailingRetriever:
    """Raises what it is given."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """See Retriever."""
        raise self._error


def test_overload_is_503_with_retry_after() -> None:
    """Would catch a 429, which verl and SkyRL do not retry, so that the error text becomes an observation."""
    (response,) = post(create_app(FailingRetriever(OverloadedError("full", retry_after_seconds=7))), {"query": "x"})
    assert (response.status_code, response.headers["retry-after"]) == (503, "7")
    assert response.json() == {"detail": "try again: full"}


def test_a_failed_search_is_a_500_in_json() -> None:
    """Would catch an HTML or plain-text body, which clients report as a JSON decode error."""
    app = create_app(FailingRetriever(RuntimeError("out of memory")))

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/retrieve", json={"query": "x"})

    response = asyncio.run(ask())
    assert response.status_code == 500
    assert response.json() == {"detail": "the search failed: RuntimeError"}
