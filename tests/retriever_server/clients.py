"""Small clients that ask and read as other trainers' clients do; written anew, each from a description.

Not ours to improve: where a client ignores the status or gives up at a 4xx, so does its copy here.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx

_RETRIED = (500, 502, 503, 504)
_MAX_ATTEMPTS = 10


async def search_r1(http: httpx.AsyncClient, queries: Sequence[str], topk: int = 3) -> list[str]:
    """The text for each trajectory that searched in this turn: one POST, no status check, no retry."""
    body = {"queries": list(queries), "topk": topk, "return_scores": True}
    results = (await http.post("/retrieve", json=body)).json()["result"]
    return ["".join(_titled(n, hit["document"]["contents"]) for n, hit in enumerate(hits, 1)) for hits in results]


async def slime(http: httpx.AsyncClient, query: str, topk: int = 3) -> str:
    """The text for one query; documents stand bare in the list, and any failure is silently no documents."""
    body = {"queries": [query], "topk": topk, "return_scores": False}
    try:
        response = await http.post("/retrieve", json=body)
        response.raise_for_status()
        contents = [item["contents"] for item in response.json()["result"][0]]
    except (httpx.HTTPError, KeyError, TypeError, ValueError):
        contents = []
    return "".join(_titled(n, content) for n, content in enumerate(contents, 1))


async def asearcher(http: httpx.AsyncClient, query: str, topk: int = 3) -> list[tuple[str, str]]:
    """Url and text of each document; a document without a url is a KeyError."""
    response = await http.post("/retrieve", json={"queries": [query], "topk": topk, "return_scores": False})
    return [(item["url"], item["contents"][:5000]) for item in response.json()["result"][0]]


async def verl_search_tool(
    http: httpx.AsyncClient, queries: Sequence[str], wait: Callable[[int], Awaitable[None]], topk: int | None = 3
) -> str:
    """What the policy reads: a JSON string, of the passages or of the error that ended ten attempts."""
    body = {"queries": list(queries), "topk": topk, "return_scores": True}
    found, error = await _with_retries(http, body, wait)
    if found is None:
        return json.dumps({"result": f"Search error: {error}"})
    texts = []
    for hits in found["result"]:
        parts = [hit["document"]["contents"].partition("\n") for hit in hits]
        texts.append("".join(f"Doc {n} (Title: {title})\n{text}\n\n" for n, (title, _, text) in enumerate(parts, 1)))
    return json.dumps({"result": "\n---\n".join(text.strip() for text in texts)})


async def skyrl_gym(http: httpx.AsyncClient, query: str, wait: Callable[[int], Awaitable[None]], topk: int = 3) -> str:
    """What the policy reads of the one list there must be."""
    found, error = await _with_retries(http, {"query": query, "topk": topk, "return_scores": True}, wait)
    if found is None:
        return json.dumps({"result": f"Search error: {error}"})
    (hits,) = found["result"]
    text = "\n".join(f"Doc {n}: {hit['document']['contents']}" for n, hit in enumerate(hits, 1))
    return json.dumps({"result": text})


async def _with_retries(
    http: httpx.AsyncClient, body: dict[str, Any], wait: Callable[[int], Awaitable[None]]
) -> tuple[dict[str, Any] | None, str]:
    """The answer, or None and why: a 5xx and a lost connection are tried again, all else is final."""
    error = ""
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        try:
            response = await http.post("/retrieve", json=body, timeout=30)
        except (httpx.ConnectError, httpx.TimeoutException) as failure:
            error = f"{type(failure).__name__} (attempt {attempt})"
        else:
            if response.status_code not in _RETRIED:
                return (response.json(), "") if response.is_success else (None, f"status {response.status_code}")
            error = f"server error {response.status_code} (attempt {attempt})"
        await wait(attempt)
    return None, error


def _titled(number: int, contents: str) -> str:
    title, _, text = contents.partition("\n")
    return f"Doc {number}(Title: {title}) {text}\n"
