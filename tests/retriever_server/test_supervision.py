"""What a supervisor asks the service: is it alive, is it ready, what does it serve."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import httpx
import orjson
from fastapi import FastAPI

from retriever_server.app import attach_retriever, create_app
from retriever_server.limits import Limits
from retriever_server.opening import open_retriever
from retriever_server.retrievers import Retriever
from retriever_server.schema import ScoredPassage
from tests.retriever_server.bag_of_words import BagOfWordsEncoder
from tests.retriever_server.conftest import EchoRetriever, get


def test_alive_before_ready(planets: Retriever) -> None:
    """Would catch a supervisor that kills a loading process, or sends it work before it can search."""
    app = create_app(None)
    live, ready = get(app, "/live", "/ready")
    assert (live.status_code, live.json()) == (200, {"status": "ok"})
    assert (ready.status_code, ready.headers["retry-after"]) == (503, "2")
    attach_retriever(app, planets)
    assert get(app, "/live")[0].status_code == 200


async def answers_of_ready(app: FastAPI, *, until_status: int) -> list[httpx.Response]:
    """Those of repeated questions, the last one with the status (or the hundredth)."""
    responses: list[httpx.Response] = []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        while not responses or (responses[-1].status_code != until_status and len(responses) < 100):
            responses.append(await asyncio.wait_for(client.get("/ready"), 1))
            await asyncio.sleep(0.01)
    return responses


def test_ready_is_503_until_a_query_of_its_own_was_answered() -> None:
    """Would catch ready that only says "loaded", and a probe that hangs on a search that is slow."""
    echo = EchoRetriever(is_open=False)
    app = create_app(echo)

    async def ask() -> list[httpx.Response]:
        (first,) = await answers_of_ready(app, until_status=503)
        assert (first.status_code, first.headers["retry-after"]) == (503, "1")
        assert "a first query is under way" in first.json()["detail"]
        echo.gate.set()
        return await answers_of_ready(app, until_status=200)

    assert asyncio.run(ask())[-1].json() == {"status": "ok"}
    assert echo.batches == [["a first query"]]


class FailingAtFirst(EchoRetriever):
    """Fails once, as a GPU that another process still holds does."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """See Retriever."""
        if not self.batches:
            self.batches.append([])
            raise RuntimeError("out of memory")
        return super().search(queries, top_k=top_k)


def test_a_first_query_that_fails_is_told_and_tried_again() -> None:
    """Would catch a service that is ready though it cannot search, or never ready after one bad moment."""
    responses = asyncio.run(answers_of_ready(create_app(FailingAtFirst()), until_status=200))
    assert responses[-1].status_code == 200
    assert any("the first query failed (out of memory)" in response.text for response in responses)


def test_info_is_the_manifest_and_the_limits(planets_folder: Path) -> None:
    """Would catch a service that cannot be told from one over another corpus or encoder."""
    app = create_app(None, limits=Limits(max_queries=7))
    assert get(app, "/info")[0].status_code == 503
    attach_retriever(app, *open_retriever(planets_folder, load_encoder=lambda name: BagOfWordsEncoder()))
    info = get(app, "/info")[0].json()
    assert info["index"] == orjson.loads((planets_folder / "manifest.json").read_bytes())
    assert info["limits"]["max_queries"] == 7
    assert info["limits"]["max_top_k"] == 1000
