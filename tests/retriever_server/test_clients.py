"""The clients of other trainers against the real app: what their policies get to read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import httpx
import pytest
from fastapi import FastAPI

from retriever_server.app import attach_retriever, create_app
from retriever_server.retrievers import Retriever
from retriever_server.settings import Batching
from tests.retriever_server.bag_of_words import PLANETS
from tests.retriever_server.clients import asearcher, search_r1, skyrl_gym, slime, verl_search_tool
from tests.retriever_server.conftest import EchoRetriever

MARS = "Mars is red and has two moons, Phobos and Deimos."
PLUTO = "Pluto was called a planet until 2006."


async def no_wait(attempt: int) -> None:
    """Try again at once."""


def use(app: FastAPI, *uses: Callable[[httpx.AsyncClient], Awaitable[object]]) -> list[object]:
    """What clients make of the app, all at the same time."""

    async def ask() -> list[object]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            return list(await asyncio.gather(*(use(http) for use in uses)))

    return asyncio.run(ask())


def test_search_r1_reads_a_turn(planets_app: FastAPI) -> None:
    """Would catch a document that is not wrapped when scores are asked for, or a title line that went missing."""
    (texts,) = use(planets_app, lambda http: search_r1(http, ["red Phobos", "until 2006", "red Phobos"], topk=1))
    assert texts == [
        f'Doc 1(Title: "Mars") {MARS}\n',
        f'Doc 1(Title: "") {PLUTO}\n',
        f'Doc 1(Title: "Mars") {MARS}\n',
    ]


def test_search_r1_posts_an_empty_turn(planets_app: FastAPI) -> None:
    """Would catch a 422 for a turn in which nobody searched, which ends a training run: there is no `result`."""
    assert use(planets_app, lambda http: search_r1(http, [])) == [[]]


def test_search_r1_posts_a_whole_turn_of_4096(planets_app: FastAPI) -> None:
    """Would catch a limit on queries or bytes that a large batch meets in its first turn."""
    in_signs = str.maketrans("0123456789", "!?.,;:-+*/")
    queries = [f"red Phobos {n}".translate(in_signs) for n in range(4096)]
    (texts,) = use(planets_app, lambda http: search_r1(http, queries, topk=1))
    assert texts == [f'Doc 1(Title: "Mars") {MARS}\n'] * 4096


def test_slime_and_asearcher_read_bare_documents(planets_app: FastAPI) -> None:
    """Would catch wrapped documents without scores: slime then reads nothing, silently, and ASearcher raises."""
    text, documents = use(
        planets_app,
        lambda http: slime(http, "red Phobos", topk=1),
        lambda http: asearcher(http, "hottest Venus", topk=1),
    )
    assert text == f'Doc 1(Title: "Mars") {MARS}\n'
    assert documents == [
        ("https://example.org/venus", '"Venus"\nVenus is the hottest planet and has no moon.'),
    ]


def test_verl_reads_several_queries_of_one_call(planets_app: FastAPI) -> None:
    """Would catch answers that are shifted or joined wrongly, and a topk of null that is refused."""
    (one, three) = use(
        planets_app,
        lambda http: verl_search_tool(http, ["red Phobos", "until 2006"], no_wait, topk=1),
        lambda http: verl_search_tool(http, ["red Phobos"], no_wait, topk=None),
    )
    assert isinstance(one, str) and isinstance(three, str)
    assert json.loads(one)["result"] == f'Doc 1 (Title: "Mars")\n{MARS}\n---\nDoc 1 (Title: "")\n{PLUTO}'
    assert json.loads(three)["result"].count("(Title: ") == 3


def test_skyrl_gym_reads_the_one_list(planets_app: FastAPI) -> None:
    """Would catch a `query` answered without the outer list, or with more than one inner list."""
    (text,) = use(planets_app, lambda http: skyrl_gym(http, "red Phobos", no_wait, topk=1))
    assert text == json.dumps({"result": f'Doc 1: "Mars"\n{MARS}'})


def test_a_topk_above_the_corpus_is_fewer_documents_for_everybody(planets_app: FastAPI) -> None:
    """Would catch a null in place of a missing document, which each client fails on in its own way."""
    texts = use(
        planets_app,
        lambda http: skyrl_gym(http, "moon", no_wait, topk=50),
        lambda http: slime(http, "moon", topk=50),
        lambda http: verl_search_tool(http, ["moon"], no_wait, topk=50),
    )
    assert [str(text).count("Doc ") for text in texts] == [len(PLANETS)] * 3


def test_all_of_them_at_once_get_their_own_answers(planets_app: FastAPI) -> None:
    """Would catch a dialect or a score flag of one request that is applied to its neighbours in the batch."""
    alone = [
        *use(planets_app, lambda http: search_r1(http, ["Mars", "Venus"])),
        *use(planets_app, lambda http: slime(http, "Mars")),
        *use(planets_app, lambda http: skyrl_gym(http, "Venus", no_wait)),
        *use(planets_app, lambda http: verl_search_tool(http, ["Earth"], no_wait)),
    ]
    together = use(
        planets_app,
        lambda http: search_r1(http, ["Mars", "Venus"]),
        lambda http: slime(http, "Mars"),
        lambda http: skyrl_gym(http, "Venus", no_wait),
        lambda http: verl_search_tool(http, ["Earth"], no_wait),
    )
    assert together == alone


def test_retrying_clients_outlast_a_service_that_is_loading(planets: Retriever) -> None:
    """Would catch a status for not-ready that verl and SkyRL do not retry: the policy then reads an error."""
    app = create_app(None)
    waits: list[int] = []

    async def wait(attempt: int) -> None:
        waits.append(attempt)
        if len(waits) == 6:
            attach_retriever(app, planets)

    texts = use(
        app,
        lambda http: skyrl_gym(http, "red Phobos", wait, topk=1),
        lambda http: verl_search_tool(http, ["red Phobos"], wait, topk=1),
    )
    assert len(waits) >= 6
    for text in texts:
        assert MARS in str(text) and "error" not in str(text)


@pytest.mark.parametrize("num_queries", [1, 50])
def test_retrying_clients_outlast_a_full_queue(num_queries: int) -> None:
    """Would catch a 429 or a 4xx for overload, at which verl gives up at once."""
    echo = EchoRetriever(is_open=False)
    waits: list[int] = []

    async def wait(attempt: int) -> None:
        waits.append(attempt)
        echo.gate.set()
        await asyncio.sleep(0.05)

    async def fill_then_ask(http: httpx.AsyncClient) -> str:
        # A batch is taken at once; what it leaves and the second request are as much as may wait.
        sizes = {"first": 64, "second": 16}
        fillers = []
        for name, size in sizes.items():
            queries = [f"{name} {n}" for n in range(size)]
            fillers.append(asyncio.create_task(search_r1(http, queries, topk=1)))
            await asyncio.sleep(0.05)
        text = await verl_search_tool(http, [f"q{n}" for n in range(num_queries)], wait, topk=1)
        assert [len(texts) for texts in await asyncio.gather(*fillers)] == list(sizes.values())
        return text

    app = create_app(echo, batching=Batching(max_batch_queries=16, max_pending_queries=64))
    (text,) = use(app, fill_then_ask)
    assert waits
    assert str(text).count("Doc 1") == num_queries
