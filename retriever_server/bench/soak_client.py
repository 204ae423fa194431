"""The clients of a soak, a process of its own: `python -m retriever_server.bench.soak_client < spec.json`."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
from pydantic import TypeAdapter

from retriever_server.bench.oracle import MOST_HITS, Oracle

# Mostly single queries, now and then a whole turn: about six queries a request in the mean.
_SIZES, _SIZE_WEIGHTS = (1, 4, 32, 256), (80, 12, 7, 1)
_TOP_KS = (1, 3, 5, 10, MOST_HITS)
_MOST_EXAMPLES = 5
_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class SoakSpec:
    """Whom to ask for how long, with how many clients, and the right answers."""

    url: str
    folder: Path
    oracle: Path
    num_clients: int
    seconds: float


@dataclass(slots=True)
class SoakResult:
    """What the clients saw. A deliberate 503 has Retry-After and is waited for; `statuses` are those of no use.

    `examples` are the first few faults in words.
    """

    num_requests: int = 0
    num_queries: int = 0
    num_wrong: int = 0
    num_deliberate_503: int = 0
    num_lost_connections: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)


class _Client:
    def __init__(self, http: httpx.AsyncClient, oracle: Oracle, result: SoakResult, seed: int) -> None:
        self._http, self._oracle, self._result, self._random = http, oracle, result, random.Random(seed)

    async def ask_until(self, end: float) -> None:
        """One request after the other."""
        while time.monotonic() < end:
            await self._ask()

    async def _ask(self) -> None:
        (size,) = self._random.choices(_SIZES, _SIZE_WEIGHTS)
        queries = [self._random.randrange(len(self._oracle.texts)) for _ in range(size)]
        top_k, with_scores = self._random.choice(_TOP_KS), self._random.random() < 0.5
        texts = [self._oracle.texts[query] for query in queries]
        asked: dict[str, Any] = {"query": texts[0]} if size == 1 and self._random.random() < 0.5 else {"queries": texts}
        body = orjson.dumps({**asked, "topk": top_k, "return_scores": with_scores})
        try:
            response = await self._http.post("/retrieve", content=body, headers={"Content-Type": "application/json"})
        except httpx.TransportError as error:
            self._result.num_lost_connections += 1
            self._note(f"{type(error).__name__}: {error}")
            return
        if response.status_code == httpx.codes.SERVICE_UNAVAILABLE and "Retry-After" in response.headers:
            self._result.num_deliberate_503 += 1
            await asyncio.sleep(float(response.headers["Retry-After"]))
        elif response.status_code != httpx.codes.OK:
            statuses = Counter(self._result.statuses)
            statuses[str(response.status_code)] += 1
            self._result.statuses = dict(statuses)
            self._note(f"{response.status_code}: {response.text[:200]}")
        else:
            self._check(queries, top_k, orjson.loads(response.content)["result"], with_scores=with_scores)

    def _check(self, queries: list[int], top_k: int, answers: list[Any], *, with_scores: bool) -> None:
        self._result.num_requests += 1
        self._result.num_queries += len(queries)
        if len(answers) != len(queries):
            self._result.num_wrong += len(queries)
            self._note(f"{len(answers)} answers to {len(queries)} queries")
            return
        for query, hits in zip(queries, answers, strict=True):
            fault = self._oracle.fault(query, top_k, hits, with_scores=with_scores)
            if fault is not None:
                self._result.num_wrong += 1
                self._note(f"{self._oracle.texts[query]!r}, k {top_k}: {fault}")

    def _note(self, example: str) -> None:
        if len(self._result.examples) < _MOST_EXAMPLES:
            self._result.examples.append(example)


async def run_soak(spec: SoakSpec, transport: httpx.AsyncBaseTransport | None = None) -> SoakResult:
    """Ask and check until the time is up; `transport` None is the network."""
    oracle, result = Oracle.load(spec.oracle, spec.folder), SoakResult()
    async with AsyncExitStack() as stack:
        clients = [
            _Client(await stack.enter_async_context(_own_client(spec.url, transport)), oracle, result, seed)
            for seed in range(spec.num_clients)
        ]
        end = time.monotonic() + spec.seconds
        await asyncio.gather(*(client.ask_until(end) for client in clients))
    return result


def _own_client(url: str, transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
    """With a pool of its own: one pool for many looks at all its connections for each request."""
    return httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_SECONDS, transport=transport, trust_env=False, verify=False)


def main() -> None:
    """From a SoakSpec on stdin to a SoakResult on stdout."""
    spec = TypeAdapter(SoakSpec).validate_json(sys.stdin.buffer.read())
    sys.stdout.buffer.write(orjson.dumps(asyncio.run(run_soak(spec))))


if __name__ == "__main__":
    main()
