"""Another index takes the place of the served one, or does not and says why."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from fastapi import FastAPI

from retriever_server.app import create_app
from retriever_server.index import build_index
from retriever_server.opening import open_retriever
from retriever_server.schema import Passage, ScoredPassage
from retriever_server.service import Opened
from tests.retriever_server.bag_of_words import BagOfWordsEncoder
from tests.retriever_server.conftest import EchoRetriever, write_corpus

T = TypeVar("T")
LOCAL = ("127.0.0.1", 50000)


class NamedRetriever(EchoRetriever):
    """Finds one passage, its own name."""

    def __init__(self, name: str, *, is_open: bool = True) -> None:
        super().__init__(is_open=is_open)
        self.name = name

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """See Retriever."""
        super().search(queries, top_k=top_k)
        return [[ScoredPassage(Passage(self.name, "", ""), 1.0)] for _ in queries]


def asking(
    app: FastAPI, questions: Callable[[httpx.AsyncClient], Awaitable[T]], *, client: tuple[str, int] = LOCAL
) -> T:
    """What the questions to the app return."""

    async def ask() -> T:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app, client=client), base_url="http://test") as http:
            return await questions(http)

    return asyncio.run(ask())


async def found_by(http: httpx.AsyncClient, *queries: str) -> list[str]:
    """The id of the first passage of each query."""
    response = await http.post("/retrieve", json={"queries": queries or ["any"], "topk": 1})
    return [hits[0]["id"] for hits in response.json()["result"]]


async def reload(http: httpx.AsyncClient, **headers: str) -> tuple[int, str]:
    """Status and body of the answer."""
    response = await http.post("/admin/reload", headers=headers)
    return response.status_code, response.text


def test_a_rebuilt_folder_is_served_after_a_reload(planets_folder: Path, tmp_path: Path) -> None:
    """Would catch a reload that opens what it has open already, or answers from the old cache."""
    folder = shutil.copytree(planets_folder, tmp_path / "index")

    def open_again() -> Opened:
        return open_retriever(folder, load_encoder=lambda name: BagOfWordsEncoder())

    app = create_app(open_again()[0], open_again=open_again)

    async def questions(http: httpx.AsyncClient) -> None:
        assert await found_by(http, "moon Mars") == ["mars"]
        moons = [Passage("phobos", "Phobos", "Phobos is a moon of Mars.")]
        build_index(write_corpus(tmp_path / "corpus.jsonl", moons), folder, BagOfWordsEncoder())
        assert await found_by(http, "moon Mars") == ["mars"]
        response = await http.post("/admin/reload")
        assert (response.status_code, response.json()["index"]["num_passages"]) == (200, 1)
        assert await found_by(http, "moon Mars") == ["phobos"]
        assert (await http.get("/info")).json()["index"] == response.json()["index"]
        assert (await http.get("/ready")).status_code == 200

    asking(app, questions)


@pytest.mark.parametrize("fault", ["gone", "cut short", "another encoder", "the first search fails", "a bug"])
def test_a_reload_that_fails_leaves_the_old_index_and_says_why(
    fault: str, planets_folder: Path, tmp_path: Path
) -> None:
    """Would catch a service that is down because a copy was not complete when somebody said reload."""
    folder = shutil.copytree(planets_folder, tmp_path / "index")

    def open_again() -> Opened:
        if fault == "gone":
            shutil.rmtree(folder)
        elif fault == "cut short":
            path = folder / "index.faiss"
            path.write_bytes(path.read_bytes()[:-1])
        elif fault == "the first search fails":
            return FailingRetriever(), None
        elif fault == "a bug":
            raise KeyError("surprise")
        return open_retriever(folder, load_encoder=lambda name: BagOfWordsEncoder(flipped=True))

    app = create_app(NamedRetriever("old"), open_again=open_again)
    status, text = asking(app, reload)
    assert status == 409
    assert text.startswith('{"detail":"the index was not reloaded, the old one serves on: ')
    assert {
        "gone": "not an index folder",
        "cut short": "index.faiss",
        "another encoder": "its weights have changed",
        "the first search fails": "out of memory",
        "a bug": "surprise",
    }[fault] in text
    assert asking(app, found_by) == ["old"]


class FailingRetriever:
    """An index that opens and cannot be searched."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """See Retriever."""
        raise RuntimeError("out of memory")


def test_searches_go_on_while_it_loads_and_no_request_mixes_two_indexes() -> None:
    """Would catch a pause while the model loads, and a request of many batches answered half by each index."""
    old, may_open = NamedRetriever("old"), threading.Event()

    def open_again() -> Opened:
        assert may_open.wait(10)
        return NamedRetriever("new"), None

    async def questions(http: httpx.AsyncClient) -> None:
        reloading = asyncio.create_task(reload(http))
        await asyncio.sleep(0.05)
        assert await found_by(http) == ["old"]
        old.gate.clear()
        under_way = asyncio.create_task(found_by(http, *map(str, range(1000))))
        await asyncio.sleep(0.05)
        may_open.set()
        assert (await reloading)[0] == 200
        assert await found_by(http) == ["new"]
        old.gate.set()
        assert set(await under_way) == {"old"}

    asking(create_app(old, open_again=open_again), questions)


def test_an_index_that_is_not_warm_yet_is_not_served() -> None:
    """Would catch the slow first search of a model put on a client, or served before it was tried."""
    new = NamedRetriever("new", is_open=False)

    async def questions(http: httpx.AsyncClient) -> None:
        reloading = asyncio.create_task(reload(http))
        await asyncio.sleep(0.05)
        assert await found_by(http) == ["old"]
        new.gate.set()
        assert (await reloading)[0] == 200
        assert await found_by(http) == ["new"]

    asking(create_app(NamedRetriever("old"), open_again=lambda: (new, None)), questions)


def test_reloads_come_one_after_the_other_and_the_last_one_serves() -> None:
    """Would catch two models loaded at once, and a slow old load that ends last and wins."""
    opened: list[str] = []
    num_open, lock = [0], threading.Lock()

    def open_again() -> Opened:
        with lock:
            num_open[0] += 1
            assert num_open[0] == 1
        opened.append(f"index {len(opened)}")
        threading.Event().wait(0.02)
        num_open[0] -= 1
        return NamedRetriever(opened[-1]), None

    async def questions(http: httpx.AsyncClient) -> list[str]:
        assert [status for status, _ in await asyncio.gather(*(reload(http) for _ in range(5)))] == [200] * 5
        return await found_by(http)

    assert asking(create_app(NamedRetriever("old"), open_again=open_again), questions) == ["index 4"]


def test_the_old_index_goes_with_its_thread() -> None:
    """Would catch the memory, the mapped files and the thread of every index that was ever served."""
    made: list[weakref.ref[NamedRetriever]] = []

    def open_again() -> Opened:
        retriever = NamedRetriever(f"index {len(made)}")
        made.append(weakref.ref(retriever))
        return retriever, None

    app = create_app(NamedRetriever("old"), open_again=open_again)

    async def questions(http: httpx.AsyncClient) -> None:
        for _ in range(4):
            assert (await reload(http))[0] == 200
            await found_by(http)

    asking(app, questions)
    gc.collect()
    assert [retriever() is None for retriever in made] == [True, True, True, False]
    assert app.state.service.served is not None


@pytest.mark.parametrize(
    ("host", "headers", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("127.9.9.9", {}, 200),
        ("::1", {}, 200),
        ("::ffff:127.0.0.1", {}, 200),
        ("10.0.0.1", {}, 403),
        ("::ffff:10.0.0.1", {}, 403),
        ("2001:db8::1", {}, 403),
        ("localhost", {}, 403),
        ("10.0.0.1", {"X-Forwarded-For": "127.0.0.1"}, 403),
        ("127.0.0.1", {"X-Forwarded-For": "10.0.0.1"}, 403),
        ("127.0.0.1", {"Forwarded": "for=10.0.0.1"}, 403),
        ("127.0.0.1", {"Origin": "https://example.org"}, 403),
    ],
)
def test_only_this_machine_may_reload(host: str, headers: dict[str, str], status: int) -> None:
    """Would catch a reload for anybody on the network, behind a proxy, or on a web page that is open here."""
    app = create_app(NamedRetriever("old"), open_again=lambda: (NamedRetriever("new"), None))
    found, text = asking(app, lambda http: reload(http, **headers), client=(host, 50000))
    assert found == status
    assert ("own machine" in text) == (status == 403)


def test_reload_is_for_those_with_the_token_and_by_post_alone() -> None:
    """Would catch a token that leaves the one request that changes something open, or a reload by a link."""
    app = create_app(NamedRetriever("old"), token="t", open_again=lambda: (NamedRetriever("new"), None))
    assert asking(app, reload)[0] == 401
    assert asking(app, lambda http: reload(http, Authorization="Bearer t"))[0] == 200

    async def by_get(http: httpx.AsyncClient) -> int:
        return (await http.get("/admin/reload", headers={"Authorization": "Bearer t"})).status_code

    assert asking(app, by_get) == 405


def test_there_is_no_reload_before_anything_is_served_or_without_a_folder() -> None:
    """Would catch a second load beside the first one, or a 500 for an app over a retriever in memory."""
    status, text = asking(create_app(None, open_again=lambda: (NamedRetriever("new"), None)), reload)
    assert status == 503 and "still loading" in text
    assert asking(create_app(NamedRetriever("old")), reload)[0] == 404
