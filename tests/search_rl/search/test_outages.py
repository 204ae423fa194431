"""Services that go away and come back: circuits, pauses, several URLs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from search_rl.errors import RetrieverError, RetrieverOutage
from search_rl.search import SearchClient, SearchCounts
from search_rl.types import SearchResult


class Town:
    """Servers by host name; those in `down` refuse connections, all of them fail on `poison`, and while `gate` is shut
    none answers. `asked` counts requests, `heard` keeps pauses."""

    def __init__(self, *hosts: str, **options: Any) -> None:
        self.down: set[str] = set()
        self.broken: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.queries: list[str] = []
        self.heard: list[str] = []
        self.poison = "poison"
        self.gate = asyncio.Event()
        self.gate.set()
        settings = {
            "backoff_seconds": 0.001,
            "probe_seconds": 0.01,
            "failures_to_open": 3,
            "on_pause": self.heard.append,
        }
        transport = httpx.MockTransport(self._answer)
        self.client = SearchClient([f"http://{host}" for host in hosts], transport=transport, **{**settings, **options})

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        await self.gate.wait()
        host = request.url.host
        queries = json.loads(request.content)["queries"]
        self.asked[host] += 1
        self.queries += queries
        if host in self.down:
            raise httpx.ConnectError("refused")
        if host in self.broken or self.poison in queries:
            return httpx.Response(500)
        hit = {"document": {"id": "1", "contents": f"{host}\nx"}, "score": 1.0}
        return httpx.Response(200, json={"result": [[hit] for _ in queries]})

    async def search(self, query: str) -> str:
        """The host that answered."""
        result: SearchResult = await self.client.search(query, 1)
        return result.passages[0].passage.title


def in_town(town: Town, story: Callable[[], Awaitable[None]]) -> None:
    """Play a story while the client is open."""

    async def play() -> None:
        async with town.client:
            await asyncio.wait_for(story(), timeout=5)

    asyncio.run(play())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a task in the background brings about."""
    while not condition():
        await asyncio.sleep(0.002)


def test_services_are_asked_in_turn() -> None:
    """Would catch a second URL that is only a spare: half of a cluster's retrievers idle."""
    town = Town("a", "b", "c")

    async def story() -> None:
        answered = [await town.search(f"q{i}") for i in range(9)]
        assert Counter(answered) == {"a": 3, "b": 3, "c": 3}

    in_town(town, story)


def test_a_service_that_is_down_costs_no_search_and_rejoins_when_it_is_back() -> None:
    """Would catch an episode that is void while a healthy service stands by, and a service that is lost for good."""
    town = Town("a", "b")
    town.down.add("a")

    async def story() -> None:
        for i in range(12):
            assert await town.search(f"q{i}") == "b"
        asked = sum(query.startswith("q") for query in town.queries) - 12
        assert asked == 3, "an open circuit is not asked"
        num_probes = town.asked["a"]
        town.down.clear()
        await until(lambda: town.asked["a"] > num_probes)
        await asyncio.sleep(0.005)
        assert {await town.search("new"), await town.search("newer")} == {"a", "b"}

    in_town(town, story)
    assert town.heard == []


def test_searches_wait_for_a_service_that_comes_back() -> None:
    """Would catch episodes made void by a restart that lasts longer than all retries."""
    town = Town("a", max_attempts=4, deadline_seconds=0.05)
    town.down.add("a")

    async def story() -> None:
        waiting = [asyncio.create_task(town.search(f"q{i}")) for i in range(3)]
        await until(lambda: len(town.heard) >= 2)
        await asyncio.sleep(0.1)  # Longer than the deadline, which stands still in an outage.
        assert not any(search.done() for search in waiting)
        town.down.clear()
        assert await asyncio.gather(*waiting) == ["a"] * 3

    in_town(town, story)
    assert town.heard[0] == "no retriever answers: http://a (ConnectError refused)"
    assert not town.client.lost


def test_an_outage_past_its_limit_is_an_error_that_names_every_url_and_it_can_still_end() -> None:
    """Would catch a run that waits for ever, and one that stays lost when the service is back."""
    town = Town("a", "b", outage_limit_seconds=0.05)
    town.down |= {"a", "b"}

    async def story() -> None:
        with pytest.raises(RetrieverOutage, match=r"http://a \(.*refused\), http://b \(.*refused\)"):
            await town.search("q")
        assert "http://a" in town.client.lost
        with pytest.raises(RetrieverOutage):
            await asyncio.wait_for(town.search("r"), timeout=0.04)
        town.down.clear()
        await until(lambda: not town.client.lost)
        assert await town.search("s") in ("a", "b")

    in_town(town, story)


def test_a_query_that_a_healthy_service_fails_on_is_void_and_not_an_outage() -> None:
    """Would catch one query that the server crashes on holding the whole run, since only that query is asked."""
    town = Town("a", max_attempts=5)

    async def story() -> None:
        with pytest.raises(RetrieverError, match=r"http://a failed: status 500 \(attempt 5\)"):
            await town.search("poison")
        assert await town.search("fine") == "a"

    in_town(town, story)


def test_a_service_that_hangs_opens_its_circuit() -> None:
    """Would catch every search waiting for the timeout of a service that accepts and never answers."""

    async def hang(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(10)
        return httpx.Response(200)

    async def play() -> None:
        options: dict[str, Any] = {"deadline_seconds": 0.02, "failures_to_open": 2, "outage_limit_seconds": 0.0}
        async with SearchClient("http://slow", transport=httpx.MockTransport(hang), **options) as client:
            for _ in range(2):
                with pytest.raises(RetrieverError, match=r"no answer, and 0\.02 seconds are over"):
                    await client.search("q", 1)
            with pytest.raises(RetrieverOutage):
                await client.search("q", 1)

    asyncio.run(play())


def test_a_query_under_way_is_not_asked_again_and_answers_are_kept() -> None:
    """Would catch eight siblings that search for the same thing one after the other, and a cache nobody can see."""
    town = Town("a")

    async def story() -> None:
        town.gate.clear()
        first = asyncio.create_task(town.search("q"))
        await asyncio.sleep(0.02)
        later = [asyncio.create_task(town.search("q")) for _ in range(2)]
        await asyncio.sleep(0)
        town.gate.set()
        await asyncio.gather(first, *later)
        await town.search("q")
        await town.search("r")

    in_town(town, story)
    assert town.queries == ["q", "r"]
    counts = town.client.take_counts()
    assert counts == SearchCounts(searches=5, cached=1, shared=2, requests=2, failed_requests=0)
    assert town.client.take_counts() == SearchCounts()


def test_failures_and_other_sizes_are_not_kept() -> None:
    """Would catch a failure that is served from the cache, and three passages given to one who asked for five."""
    town = Town("a", max_attempts=1)
    town.broken.add("a")

    async def story() -> None:
        with pytest.raises(RetrieverError, match="status 500"):
            await town.search("q")
        town.broken.clear()
        await town.search("q")
        await town.client.search("q", 5)

    in_town(town, story)
    assert town.queries == ["q", "q", "q"]


def test_the_cache_is_bounded_and_can_be_off() -> None:
    """Would catch a worker whose memory grows with every query of a long run."""
    for entries, asked in ((0, ["a", "a"]), (1, ["a", "b", "a"]), (2, ["a", "b"])):
        town = Town("a", cache_entries=entries)

        async def story(town: Town = town, queries: str = "aa" if entries == 0 else "aba") -> None:
            for query in queries:
                await town.search(query)

        in_town(town, story)
        assert town.queries == asked


def test_check_names_the_one_service_that_is_away() -> None:
    """Would catch a mistyped second URL that is found out after hours, or never."""
    town = Town("a", "b")
    town.down.add("b")

    async def story() -> None:
        with pytest.raises(RetrieverError, match="no retriever at http://b: start one"):
            await town.client.check()

    in_town(town, story)


def test_closing_ends_probes_and_waits() -> None:
    """Would catch a task that probes for ever after its client is gone (asyncio warns, and warnings are errors)."""
    town = Town("a", probe_seconds=60.0)
    town.down.add("a")

    async def play() -> None:
        async with town.client:
            waiting = asyncio.create_task(town.search("q"))
            await until(lambda: bool(town.heard))
        with pytest.raises(RetrieverError, match="the client of http://a was closed during a search"):
            await waiting

    asyncio.run(play())
