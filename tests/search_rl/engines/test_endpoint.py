"""A served model that is slow, full, or cuts the connection; and the way it answers, found out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest

from search_rl.engines.base import Generation, Sampling
from search_rl.engines.endpoint import Endpoint
from search_rl.engines.served import Api, served_api, served_engine
from search_rl.errors import ConfigError, EngineError, RequestError
from tests.search_rl.conftest import ByteCodec

Reply = httpx.Response | httpx.RequestError
Handler = Callable[[httpx.Request], httpx.Response]

OK = httpx.Response(200, content=b"done")


class Script:
    """A server that gives its replies in turn, the last one for ever; `bodies` keeps what was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.bodies: list[dict[str, object]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(request.content))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, httpx.RequestError):
            raise reply
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)


def post(
    script: Handler, *, max_attempts: int = 3, deadline_seconds: float = 5.0, token_file: Path | None = None
) -> bytes:
    """One request."""

    async def ask() -> bytes:
        transport = httpx.MockTransport(script)
        async with Endpoint(
            "http://engine",
            transport=transport,
            max_attempts=max_attempts,
            deadline_seconds=deadline_seconds,
            backoff_seconds=0.001,
            token_file=token_file,
        ) as endpoint:
            return await endpoint.post("/completions", {"n": 1})

    return asyncio.run(ask())


PASSING = {
    "times out": httpx.ReadTimeout("slow"),
    "cuts the connection": httpx.RemoteProtocolError("peer closed"),
    "refuses": httpx.ConnectError("refused"),
    "rate limit": httpx.Response(429, headers={"Retry-After": "0"}, content=b"too many"),
    "overload": httpx.Response(503, content=b"busy"),
}


@pytest.mark.parametrize("trouble", PASSING.values(), ids=PASSING)
def test_what_passes_is_tried_again(trouble: Reply) -> None:
    """A question lost to one bad second of the server."""
    script = Script(trouble, trouble, OK)
    assert post(script) == b"done"
    assert len(script.bodies) == 3


@pytest.mark.parametrize("trouble", PASSING.values(), ids=PASSING)
def test_tries_are_bounded(trouble: Reply) -> None:
    """An evaluation that hangs for ever on one question, or an error that does not say how often it tried."""
    script = Script(trouble)
    with pytest.raises(RequestError, match=r"\(attempt 3\)"):
        post(script)
    assert len(script.bodies) == 3


def test_retry_after_is_heeded_within_the_deadline() -> None:
    """A server that asks for an hour is waited for, past all deadlines."""
    script = Script(httpx.Response(429, headers={"Retry-After": "3600"}))
    with pytest.raises(RequestError, match=r"answered 429: , and 0.05 seconds are over \(attempt 1\)"):
        post(script, deadline_seconds=0.05)


@pytest.mark.parametrize(("status", "error"), [(400, RequestError), (413, RequestError), (401, EngineError)])
def test_a_refusal_is_final(status: int, error: type[EngineError]) -> None:
    """A request that can never succeed asked five times, or a wrong key taken for the fault of one question."""
    script = Script(httpx.Response(status, content=b"no\nway"))
    with pytest.raises(EngineError, match=f"answered {status}: no way") as caught:
        post(script)
    assert type(caught.value) is error
    assert len(script.bodies) == 1


def test_the_token_goes_out(tmp_path: Path) -> None:
    """A key that is read and not sent, or an empty file that is sent."""
    seen: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["Authorization"])
        return OK

    path = tmp_path / "token"
    path.write_text("secret\n")
    post(handler, token_file=path)
    assert seen == ["Bearer secret"]
    path.write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        post(handler, token_file=path)


@pytest.mark.parametrize("url", ["engine:8000", "ftp://engine", "http://"])
def test_an_endpoint_that_is_no_url(url: str) -> None:
    """A traceback out of the HTTP library, after the model was loaded."""
    with pytest.raises(ConfigError, match="must look like"):
        Endpoint(url)


def server(*paths: str, ids: bool = True, has_token_ids: bool = False) -> Handler:
    """A server that knows some paths, takes prompts as ids or not, and returns them or not."""

    def handler(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if not request.url.path.endswith(paths):
            return httpx.Response(404, content=b"no such path")
        if isinstance(body.get("prompt"), list) and not ids:
            return httpx.Response(400, content=b"prompt must be a string")
        choice = {"text": "x", "message": {"content": "x"}, "token_ids": [1] if has_token_ids else None}
        return httpx.Response(200, json={"choices": [choice]})

    return handler


def probe(handler: Handler, codec: ByteCodec) -> Api:
    """What the server is found to speak."""

    async def ask() -> Api:
        transport = httpx.MockTransport(handler)
        async with Endpoint("http://engine/v1", transport=transport, backoff_seconds=0.001) as endpoint:
            return await served_api(endpoint, "m", codec)

    return asyncio.run(ask())


def test_the_most_exact_api_is_found(codec: ByteCodec) -> None:
    """Text re-encoded although the server gives token ids, or a chat server refused."""
    assert probe(server("/v1/completions", has_token_ids=True), codec) == "tokens"
    assert probe(server("/v1/completions"), codec) == "text"
    assert probe(server("/v1/completions", ids=False), codec) == "text"
    assert probe(server("/v1/chat/completions"), codec) == "chat"
    with pytest.raises(EngineError, match="http://engine/v1/completions answered 404: no such path"):
        probe(server("/v2"), codec)


def test_a_busy_server_is_not_taken_for_another(codec: ByteCodec) -> None:
    """An exact server measured through its chat, because it was busy when it was asked."""
    busy = [httpx.Response(429, headers={"Retry-After": "0"})]
    exact = server("/v1/completions", "/v1/chat/completions", has_token_ids=True)
    assert probe(lambda request: busy.pop() if busy else exact(request), codec) == "tokens"


def generate(api: Api, reply: object, codec: ByteCodec, turns: Sequence[str] = ()) -> tuple[Generation, str, object]:
    """One turn after earlier turns and observations; with its text, and what was sent."""
    script = Script(httpx.Response(200, json={"choices": [reply]}))

    async def ask() -> tuple[Generation, str]:
        async with Endpoint("http://engine", transport=httpx.MockTransport(script)) as endpoint:
            engine, turn_codec = served_engine(api, endpoint, "m", Sampling(0.0), codec)
            ids = list(turn_codec.encode_chat([{"role": "user", "content": "Who?"}]))
            for number, turn in enumerate(turns):
                is_policy = number % 2 == 0
                said = await _said(api, turn, codec) if is_policy else turn_codec.encode(turn)
                ids.extend(said)
            found = await engine.generate(ids, max_tokens=40, stop=("</search>", "</answer>"), request_id="q")
            return found, turn_codec.decode(found.token_ids)

    found, text = asyncio.run(ask())
    return found, text, script.bodies[-1]


async def _said(api: Api, text: str, codec: ByteCodec) -> tuple[int, ...]:
    """The ids that the engine gives this turn."""
    choice = {"text": text, "message": {"content": text}}
    handler = Script(httpx.Response(200, json={"choices": [choice]}))
    async with Endpoint("http://engine", transport=httpx.MockTransport(handler)) as endpoint:
        engine, _ = served_engine(api, endpoint, "m", Sampling(0.0), codec)
        return (await engine.generate((1,), max_tokens=40, stop=(), request_id="q")).token_ids


@pytest.mark.parametrize("api", ["text", "chat"])
def test_text_ends_where_a_token_engine_would(api: Api, codec: ByteCodec) -> None:
    """A stop string that the server cut off, so that no search is ever made; or text behind it that counts."""

    def text_of(content: str, finish_reason: str = "stop") -> str:
        choice = {"text": content, "message": {"content": content}, "finish_reason": finish_reason}
        found, text, _ = generate(api, choice, codec)
        assert len(found.logprobs) == len(found.token_ids) <= 40
        return text

    assert text_of("<search>Lima") == "<search>Lima</search>"
    assert text_of("a <answer>Lima") == "a <answer>Lima</answer>"
    assert text_of("<search>Lima</search> and <answer>x</answer>") == "<search>Lima</search>"
    assert text_of("<search>Lima", "length") == "<search>Lima"
    assert text_of("nothing") == "nothing"
    assert text_of("") == "\n"


def test_a_chat_keeps_who_said_what(codec: ByteCodec) -> None:
    """The passages sent as the model's own words, or a turn lost between two messages."""
    choice = {"message": {"content": None}}
    turns = ("<search>a</search>", "\n<information>A</information>\n", "<search>b</search>", "B")
    _, _, body = generate("chat", choice, codec, turns)
    assert body == {
        "model": "m",
        "messages": [
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": "<search>a</search>"},
            {"role": "user", "content": "<information>A</information>"},
            {"role": "assistant", "content": "<search>b</search>"},
            {"role": "user", "content": "B"},
        ],
        "max_tokens": 40,
        "temperature": 0.0,
        "top_p": 1.0,
        "stop": ["</search>", "</answer>"],
    }
