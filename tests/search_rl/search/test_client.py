"""The retriever's client against servers that are well, slow, down or talking nonsense."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from retriever_server.app import create_app
from search_rl.agent.episode import Limits, run_episode
from search_rl.agent.protocols import PROTOCOLS
from search_rl.engines.scripted import ScriptedEngine
from search_rl.errors import ConfigError, RetrieverError
from search_rl.search import SearchClient
from search_rl.types import Question, SearchResult, StopReason, Trajectory
from tests.search_rl.cli.conftest import OnePassage
from tests.search_rl.conftest import ByteCodec

Handler = Callable[[httpx.Request], Any]


def queries_of(request: httpx.Request) -> list[str]:
    """What a request asks."""
    return list(json.loads(request.content)["queries"])


def reply(*result: Sequence[Any]) -> httpx.Response:
    """A good reply with these lists of hits."""
    return httpx.Response(200, json={"result": list(result)})


def found(contents: str, score: float = 0.5, **fields: Any) -> dict[str, Any]:
    """One hit on the wire."""
    return {"document": {"id": "7", "contents": contents, **fields}, "score": score}


def echo(request: httpx.Request) -> httpx.Response:
    """A healthy server: every query finds itself."""
    return reply(*([found(f'"T"\n{query}')] for query in queries_of(request)))


def client(handler: Handler, **options: Any) -> SearchClient:
    """A client of a server that is a function."""
    settings = {"backoff_seconds": 0.001, "max_attempts": 3, "failures_to_open": 99, **options}
    return SearchClient("http://retriever", transport=httpx.MockTransport(handler), **settings)


def search(handler: Handler, *queries: str, top_k: int = 3, **options: Any) -> list[SearchResult | BaseException]:
    """The outcomes of queries that are asked at once."""

    async def ask() -> list[SearchResult | BaseException]:
        async with client(handler, **options) as searcher:
            searches = [searcher.search(query, top_k) for query in queries]
            return await asyncio.gather(*searches, return_exceptions=True)

    return asyncio.run(ask())


def test_the_request_and_the_passages_are_search_r1s() -> None:
    """A field that Search-R1's own server does not know, or a title that is lost on the way."""
    requests = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append((str(request.url), json.loads(request.content)))
        return reply([found('"Paris"\nCapital of\nFrance', 0.9, url="u"), found("no line break", 0.8)])

    (result,) = search(handler, "capital", top_k=3)
    assert requests == [("http://retriever/retrieve", {"queries": ["capital"], "topk": 3, "return_scores": True})]
    assert isinstance(result, SearchResult)
    assert result.query == "capital"
    first, second = result.passages
    assert (first.passage.id, first.passage.title, first.passage.text) == ("7", "Paris", "Capital of\nFrance")
    assert (first.passage.url, first.score) == ("u", 0.9)
    assert (second.passage.title, second.passage.text) == ("", "no line break")


def test_no_passages_is_a_result() -> None:
    """A healthy search that found nothing turned into a failure."""
    assert search(lambda _: reply([]), "q") == [SearchResult("q", ())]


def test_concurrent_queries_share_a_request_and_equal_ones_a_place() -> None:
    """One request for each of a hundred siblings, or answers handed to the wrong one."""
    requests: list[list[str]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(queries_of(request))
        return echo(request)

    queries = [f"q{i % 40}" for i in range(100)]
    results = search(handler, *queries)
    assert requests == [[f"q{i}" for i in range(40)]]
    for query, result in zip(queries, results, strict=True):
        assert isinstance(result, SearchResult)
        assert (result.query, result.passages[0].passage.text) == (query, query)


def test_a_batch_is_bounded() -> None:
    """One request of ten thousand queries, which a server may refuse."""
    sizes: list[int] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sizes.append(len(queries_of(request)))
        return echo(request)

    results = search(handler, *(f"q{i}" for i in range(600)))
    assert sorted(sizes) == [88, 256, 256]
    assert all(isinstance(result, SearchResult) for result in results)


def test_different_top_k_do_not_mix() -> None:
    """A query that gets another's number of passages."""

    def handler(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        return reply(*([found("x")] * body["topk"] for _ in body["queries"]))

    async def ask() -> list[SearchResult]:
        async with client(handler) as searcher:
            return await asyncio.gather(*(searcher.search("q", top_k) for top_k in (1, 5, 1)))

    assert [len(result.passages) for result in asyncio.run(ask())] == [1, 5, 1]


def test_more_passages_than_asked_are_left_out() -> None:
    """Online servers return what they have."""
    (result,) = search(lambda _: reply([found("x")] * 9), "q", top_k=2)
    assert isinstance(result, SearchResult)
    assert len(result.passages) == 2


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_server_error_is_retried(status: int) -> None:
    """A restart of the retriever that kills the run (D13)."""
    answers = [httpx.Response(status), httpx.Response(status), reply([found("x")])]
    (result,) = search(lambda _: answers.pop(0), "q")
    assert isinstance(result, SearchResult)


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.ReadError("gone")])
def test_a_transport_error_is_retried_and_then_named(error: httpx.TransportError) -> None:
    """A connection that is tried for ever, or a failure that tells neither where nor why."""
    num_calls = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal num_calls
        num_calls += 1
        raise error

    (failure,) = search(handler, "q")
    assert isinstance(failure, RetrieverError)
    assert str(failure) == f"retriever at http://retriever failed: {type(error).__name__} {error} (attempt 3)"
    assert num_calls == 3


def test_retry_after_is_heeded() -> None:
    """A server under load that is asked again at once."""
    answers = [httpx.Response(503, headers={"Retry-After": "1"}), reply([found("x")])]
    started = time.monotonic()
    (result,) = search(lambda _: answers.pop(0), "q")
    assert isinstance(result, SearchResult)
    assert time.monotonic() - started >= 1.0


def test_the_deadline_ends_all_attempts() -> None:
    """Six slow attempts that hold an episode for minutes."""

    async def handler(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(10)
        return httpx.Response(200)

    started = time.monotonic()
    (failure,) = search(handler, "q", deadline_seconds=0.2)
    assert isinstance(failure, RetrieverError)
    assert "0.2 seconds are over" in str(failure)
    assert time.monotonic() - started < 2.0


@pytest.mark.parametrize("status", [400, 404, 422, 429])
def test_a_refusal_is_final(status: int) -> None:
    """A request that can never succeed sent over and over."""
    num_calls = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal num_calls
        num_calls += 1
        return httpx.Response(status, text="no")

    (failure,) = search(handler, "q")
    assert isinstance(failure, RetrieverError)
    assert f"status {status} no" in str(failure)
    assert num_calls == 1


def test_one_refused_query_spoils_no_other() -> None:
    """A whole step of episodes made void by one query that the server refuses."""

    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(422, text="bad") if "bad" in queries_of(request) else echo(request)

    first, bad, last = search(handler, "a", "bad", "b")
    assert isinstance(bad, RetrieverError)
    assert isinstance(first, SearchResult)
    assert isinstance(last, SearchResult)


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"results": []}),
        httpx.Response(200, json={"result": []}),
        httpx.Response(200, json={"result": [[], []]}),
        httpx.Response(200, json={"result": {"0": []}}),
        httpx.Response(200, json={"result": [[{"document": {"id": "1"}, "score": 1}]]}),
        httpx.Response(200, json={"result": [[{"id": "1", "contents": "x"}]]}),
        httpx.Response(200, json={"result": [[{"document": {"contents": None}, "score": 1}]]}),
        httpx.Response(200, text='{"result": [[{"document": {"contents": "x"}, "score": NaN}]]}'),
        httpx.Response(200, content=b"\xff\xfe"),
        httpx.Response(204),
        httpx.Response(307, headers={"Location": "/elsewhere"}),
    ],
)
def test_nonsense_is_a_failure(response: httpx.Response) -> None:
    """An empty or half-read result that the policy is trained on (invariant 7)."""
    (failure,) = search(lambda _: response, "q")
    assert isinstance(failure, RetrieverError)
    assert "\n" not in str(failure)
    assert "http://retriever/retrieve" in str(failure)


def test_a_compressed_reply_that_is_broken_is_a_failure() -> None:
    """A decoding error of the HTTP library that ends the run."""

    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"not gzip"))

    (failure,) = search(handler, "q")
    assert isinstance(failure, RetrieverError)
    assert "answered nonsense" in str(failure)


def test_an_odd_query_reaches_the_server() -> None:
    """A crash of the client on text that is no valid Unicode, or on a very long query."""
    for query in ("\ud800", "\x00", "x" * 1_000_000, "日本\u2028"):
        (result,) = search(echo, query)
        assert isinstance(result, SearchResult) or query == "\ud800"


def test_a_caller_that_gives_up_spoils_no_other() -> None:
    """A cancelled episode that takes its siblings' request along."""

    async def ask() -> SearchResult:
        async with client(echo) as searcher:
            gone = asyncio.create_task(searcher.search("a", 1))
            stays = asyncio.create_task(searcher.search("b", 1))
            await asyncio.sleep(0)
            gone.cancel()
            return await stays

    assert asyncio.run(ask()).passages[0].passage.text == "b"


def test_closing_ends_searches_that_wait() -> None:
    """A search that waits for ever for a client that is gone."""

    async def handler(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(10)
        return httpx.Response(200)

    async def ask() -> None:
        async with client(handler) as searcher:
            waiting = asyncio.create_task(searcher.search("q", 1))
            await asyncio.sleep(0.05)
        with pytest.raises(RetrieverError, match="closed during a search"):
            await waiting

    asyncio.run(ask())


def check(handler: Handler) -> None:
    """Run the health check once."""

    async def ask() -> None:
        async with client(handler) as searcher:
            await searcher.check()

    asyncio.run(ask())


def refuse(request: httpx.Request) -> httpx.Response:
    """Nobody listens."""
    raise httpx.ConnectError("refused")


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (refuse, "no retriever at http://retriever: start one with search-rl serve"),
        (lambda _: httpx.Response(503), "the retriever at http://retriever is not ready yet"),
        (lambda _: httpx.Response(404), "http://retriever/retrieve refused: status 404"),
        (lambda _: httpx.Response(200, text="hello"), "http://retriever/retrieve answered nonsense"),
    ],
)
def test_check_says_in_one_line_what_to_do(handler: Handler, message: str) -> None:
    """A run that starts without a retriever and voids every episode."""
    with pytest.raises(RetrieverError, match=message):
        check(handler)


def test_check_passes_on_a_healthy_server() -> None:
    """A check that only our own server passes."""
    check(echo)


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8000", "ftp://host", "http://", "http://host:port", [], ["http://a", "b"], ["http://a", "http://a/"]],
)
def test_a_url_that_is_none_is_refused(url: str | list[str]) -> None:
    """Every search retried for a minute against a mistyped address."""
    with pytest.raises(ConfigError, match="retriever url"):
        SearchClient(url)


@pytest.mark.parametrize("url", ["http://host:1/", "http://host:1/retrieve", "http://host:1"])
def test_the_url_may_name_the_path(url: str) -> None:
    """Search-R1's configs give the full path."""
    assert SearchClient(url).urls == ("http://host:1",)


@pytest.mark.parametrize(
    "handler",
    [
        refuse,
        lambda _: httpx.Response(500, text="<answer>Paris</answer>"),
        lambda _: httpx.Response(200, text="<answer>Paris</answer>"),
        lambda _: httpx.Response(422, text="<answer>Paris</answer>"),
    ],
)
def test_a_retriever_that_fails_voids_the_episode(handler: Handler, codec: ByteCodec) -> None:
    """An error shown to the policy as if it were a passage (invariant 7)."""

    async def episode() -> Trajectory:
        async with client(handler) as searcher:
            return await run_episode(
                Question("q", "capital of France?", ("Paris",), "demo"),
                engine=ScriptedEngine(["<search>France</search>", "<answer>Paris</answer>"], codec),
                searcher=searcher,
                codec=codec,
                protocol=PROTOCOLS["short"],
                limits=Limits(),
            )

    trajectory = asyncio.run(episode())
    assert trajectory.stop_reason is StopReason.SEARCH_FAILED
    assert codec.decode(trajectory.response_ids) == "<search>France</search>"


def test_the_token_of_the_file_is_sent_with_every_request(tmp_path: Path) -> None:
    """A service that wants a token, and a trainer that cannot give one."""
    path = tmp_path / "token"
    path.write_text("s3cret\n")

    def guarded(request: httpx.Request) -> httpx.Response:
        return echo(request) if request.headers.get("Authorization") == "Bearer s3cret" else httpx.Response(401)

    async def ask() -> SearchResult:
        async with client(guarded, token_file=path) as searcher:
            await searcher.check()
            return await searcher.search("q", 1)

    assert asyncio.run(ask()).passages
    with pytest.raises(RetrieverError, match="refused: status 401"):
        check(guarded)


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_token_file_without_a_token_is_named(tmp_path: Path, content: str | None) -> None:
    """An empty token sent, and a 401 that nobody understands."""
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"retriever\.token_file: .*token"):
        SearchClient("http://host:1", token_file=path)


def told_by(transport: httpx.AsyncBaseTransport) -> Any:
    """What a service says of itself."""

    async def ask() -> Any:
        async with SearchClient("http://retriever/retrieve", transport=transport) as searcher:
            return await searcher.info()

    return asyncio.run(ask())


def test_what_a_service_says_of_itself() -> None:
    """A protocol file without the index, or a service of the Search-R1 family refused because it has no /info."""
    assert told_by(httpx.ASGITransport(create_app(OnePassage()))).keys() == {"index", "limits"}
    for response in (httpx.Response(404), httpx.Response(200, text="hello"), httpx.Response(200, json=[1])):
        assert told_by(httpx.MockTransport(lambda _, answer=response: answer)) is None
    with pytest.raises(RetrieverError, match="http://retriever/info: ConnectError refused"):
        told_by(httpx.MockTransport(refuse))
