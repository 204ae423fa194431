"""`GET /metrics`, read as Prometheus reads it."""

from __future__ import annotations

import asyncio

import httpx
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from retriever_server.app import create_app
from retriever_server.limits import Limits
from tests.retriever_server.conftest import EchoRetriever, get, post


def read_metrics(app: FastAPI) -> dict[str, float]:
    """Value by name and labels, as in `retriever_requests_total{path="/live",status="200"}`."""
    (response,) = get(app, "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert list(text_string_to_metric_families(response.text))
    lines = [line for line in response.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def requests(path: str, status: int) -> str:
    """The name of a request count."""
    return f'retriever_requests_total{{path="{path}",status="{status}"}}'


def test_what_happened_is_counted() -> None:
    """Would catch counts by request in place of query, a batch counted with its duplicates, or a wrong label."""
    app = create_app(EchoRetriever(), limits=Limits(max_query_characters=5))
    post(app, {"queries": ["a", "a", "b"]})
    post(app, {"query": "sixsix"}, {"nothing": 1})
    found = read_metrics(app)
    assert found[requests("/retrieve", 200)] == 2
    assert found[requests("/retrieve", 422)] == 1
    assert found["retriever_queries_total"] == 4
    assert found["retriever_truncated_queries_total"] == 1
    assert (found["retriever_batch_queries_count"], found["retriever_batch_queries_sum"]) == (2, 3)
    assert found["retriever_search_seconds_count"] == 2
    assert found["retriever_pending_queries"] == 0


def test_apps_do_not_share_their_counts() -> None:
    """Would catch a global registry: two apps of one process add up, or the second one cannot be made."""
    first, second = create_app(EchoRetriever()), create_app(EchoRetriever())
    post(first, {"query": "a"})
    assert read_metrics(first)["retriever_queries_total"] == 1
    assert read_metrics(second)["retriever_queries_total"] == 0


def test_paths_that_do_not_exist_are_one_label() -> None:
    """Would catch memory that grows with every path that a scanner tries."""
    app = create_app(EchoRetriever())
    get(app, "/wp-admin", "/.env", "/retrieve")
    found = read_metrics(app)
    assert found[requests("other", 404)] == 2
    assert found[requests("/retrieve", 405)] == 1
    assert not any("wp-admin" in name for name in found)


def test_a_failed_search_is_counted_as_500() -> None:
    """Would catch the failures missing from the counts: the framework answers them outside of the app's layers."""
    app = create_app(EchoRetriever())

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/retrieve", json={"query": "explode"})

    assert asyncio.run(ask()).status_code == 500
    assert read_metrics(app)[requests("/retrieve", 500)] == 1


def test_pending_queries_are_those_that_wait() -> None:
    """Would catch a gauge that stays at zero, so that nobody sees a queue grow."""
    echo = EchoRetriever(is_open=False)
    app = create_app(echo)

    async def ask() -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            first = asyncio.create_task(client.post("/retrieve", json={"query": "first"}))
            await asyncio.sleep(0.05)
            second = asyncio.create_task(client.post("/retrieve", json={"queries": ["b", "c"]}))
            await asyncio.sleep(0.05)
            text = (await client.get("/metrics")).text
            echo.gate.set()
            await asyncio.gather(first, second)
            return text

    assert "\nretriever_pending_queries 2.0\n" in asyncio.run(ask())
