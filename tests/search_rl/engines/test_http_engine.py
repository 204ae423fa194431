"""The completions client: token ids in, token ids out, and clear errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from search_rl.engines.base import Generation, Sampling
from search_rl.engines.endpoint import Endpoint
from search_rl.engines.http_engine import HttpEngine
from search_rl.errors import EngineError

CHOICE = {"text": "x", "token_ids": [5, 6], "logprobs": {"token_logprobs": [-0.5, -0.25]}}


def generate(handler: Any, url: str = "http://engine") -> Generation:
    """One request to a server that is a function."""

    async def ask() -> Generation:
        transport = httpx.MockTransport(handler)
        async with Endpoint(url, transport=transport, max_attempts=2, backoff_seconds=0.0) as endpoint:
            engine = HttpEngine(endpoint, "policy", Sampling(0.7, seed=3))
            return await engine.generate((1, 2), max_tokens=9, stop=("</search>",), request_id="q/0")

    return asyncio.run(ask())


@pytest.mark.parametrize("url", ["http://engine", "http://engine/", "http://engine/v1"])
def test_the_request_asks_for_ids_and_keeps_the_stop(url: str) -> None:
    """A prompt sent as text, or a stop string that the server cuts off."""
    seen = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((str(request.url), json.loads(request.content)))
        return httpx.Response(200, json={"choices": [CHOICE]})

    assert generate(handler, url) == Generation((5, 6), (-0.5, -0.25))
    ((asked, body),) = seen
    assert asked == "http://engine/v1/completions"
    assert body["prompt"] == [1, 2]
    assert (body["stop"], body["include_stop_str_in_output"]) == (["</search>"], True)
    assert (body["max_tokens"], body["temperature"], body["return_token_ids"]) == (9, 0.7, True)
    assert body["seed"] == Sampling(seed=3).seed_of("q/0", 2)


def refuse(request: httpx.Request) -> httpx.Response:
    """Nobody listens."""
    raise httpx.ConnectError("refused")


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (refuse, "no answer from http://engine/v1/completions: ConnectError refused"),
        (lambda _: httpx.Response(404, text="no model policy"), "answered 404: no model policy"),
        (lambda _: httpx.Response(200, text="<html>"), "did not answer with a completion"),
        (lambda _: httpx.Response(200, json={"choices": []}), "did not answer with a completion"),
        (
            lambda _: httpx.Response(200, json={"choices": [{"text": "x"}]}),
            "returned no token ids: serve the model with vLLM",
        ),
        (
            lambda _: httpx.Response(200, json={"choices": [{"token_ids": [1]}]}),
            "returned no log-probs",
        ),
    ],
)
def test_a_server_that_cannot_serve_is_an_error(handler: Any, message: str) -> None:
    """Text that is encoded again because the server gives no ids: drift that nobody sees (D1)."""
    with pytest.raises(EngineError, match=message):
        generate(handler)
