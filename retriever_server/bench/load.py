"""The client that makes the load, a process of its own: `python -m retriever_server.bench.load < spec.json`."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import orjson
from pydantic import TypeAdapter

from retriever_server.bench.connection import Connection

_OK = 200


@dataclass(frozen=True, slots=True)
class Load:
    """So many clients, each of which posts so many queries at once and, when the answer is there, the next ones."""

    concurrency: int
    batch: int

    def __str__(self) -> str:
        return f"{self.concurrency}x{self.batch}"


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """Whom to ask what for how long; `queries` are asked in turn, again and again."""

    url: str
    load: Load
    queries: tuple[str, ...]
    top_k: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What the clients saw. `latencies_seconds` are of all answers of status 200, sorted.

    `seconds` is from the first request to the last answer; each client's first request, a warm-up, is outside. A
    client begins no request after the time is up, and what is under way then is waited for.
    """

    num_failed: int
    num_warm_up_requests: int
    seconds: float
    latencies_seconds: tuple[float, ...]
    client_cpu_seconds: float


async def run_load(spec: LoadSpec) -> LoadResult:
    """Ask until the time is up."""
    bodies = _bodies(spec)
    with ExitStack() as stack:
        url = f"{spec.url}/retrieve"
        clients = [stack.enter_context(closing(Connection(url))) for _ in range(spec.load.concurrency)]
        await asyncio.gather(*(client.post(next(bodies)) for client in clients))
        start, cpu_start = time.perf_counter(), time.process_time()
        found = await asyncio.gather(*(_ask_until(start + spec.seconds, client, bodies) for client in clients))
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    latencies = [latency for of_client in found for latency in of_client]
    return LoadResult(
        num_failed=sum(latency is None for latency in latencies),
        num_warm_up_requests=spec.load.concurrency,
        seconds=seconds,
        latencies_seconds=tuple(sorted(latency for latency in latencies if latency is not None)),
        client_cpu_seconds=cpu_seconds,
    )


def _bodies(spec: LoadSpec) -> Iterator[bytes]:
    queries = itertools.cycle(spec.queries)
    while True:
        some = list(itertools.islice(queries, spec.load.batch))
        yield orjson.dumps({"queries": some, "topk": spec.top_k, "return_scores": True})


async def _ask_until(end: float, client: Connection, bodies: Iterator[bytes]) -> Sequence[float | None]:
    latencies: list[float | None] = []
    while (start := time.perf_counter()) < end:
        status = await client.post(next(bodies))
        latencies.append(time.perf_counter() - start if status == _OK else None)
    return latencies


def main() -> None:
    """From a LoadSpec on stdin to a LoadResult on stdout."""
    spec = TypeAdapter(LoadSpec).validate_json(sys.stdin.buffer.read())
    sys.stdout.buffer.write(orjson.dumps(asyncio.run(run_load(spec))))


if __name__ == "__main__":
    main()
