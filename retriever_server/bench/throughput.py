"""One run: the bare search, the service and the plain server, over the same index under the same loads."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson
from pydantic import TypeAdapter

from retriever_server.bench.bare import BareSearch, forget_files, measure_bare
from retriever_server.bench.load import Load, LoadResult, LoadSpec
from retriever_server.bench.process import (
    Server,
    Usage,
    machine_cpu_seconds,
    num_cores,
    running_server,
    started_client,
)
from retriever_server.bench.queries import EncodedQueries, encode_all
from retriever_server.bench.subject import Subject
from retriever_server.errors import BenchError
from retriever_server.manifest import Manifest

ServerName = Literal["service", "reference"]
_SERVERS: dict[ServerName, str] = {"service": "serve", "reference": "reference"}
_SPARE_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """A server under one load. Its CPU seconds are of the warm-up too, memory is as it was at the end.

    `others_cpu_share` of the machine's CPU time went to other programs meanwhile: with more than a few percent of that
    the figures are not the server's alone.
    """

    server: ServerName
    load: Load
    num_queries: int
    num_failed: int
    seconds: float
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float
    server_cpu_seconds: float
    client_cpu_seconds: float
    others_cpu_share: float
    resident_bytes: int
    private_bytes: int

    @property
    def queries_per_second(self) -> float:
        """Answered in the timed part."""
        return self.num_queries / self.seconds

    @property
    def server_cpu_milliseconds_per_query(self) -> float:
        """Over all queries that were sent, the warm-up's too."""
        num_sent = self.num_queries + (self.num_failed + self.load.concurrency) * self.load.batch
        return 1000 * self.server_cpu_seconds / num_sent


@dataclass(frozen=True, slots=True)
class ServerRun:
    """A server from its start, after `forget_files`, through all loads."""

    seconds_to_port: float
    seconds_to_ready: float
    points: tuple[LoadPoint, ...]


@dataclass(frozen=True, slots=True)
class Throughput:
    """What one run measured. `is_encoding` tells whether servers encode queries or look their vectors up."""

    folder: Path
    manifest: Manifest
    is_encoding: bool
    overlap: bool
    top_k: int
    num_queries: int
    bare: BareSearch
    service: ServerRun
    reference: ServerRun | None

    def point(self, server: ServerName, load: Load) -> LoadPoint | None:
        """The measurement of a server under a load, if there is one."""
        run = self.service if server == "service" else self.reference
        return next((point for point in run.points if point.load == load), None) if run is not None else None

    def speed_up(self, load: Load) -> float | None:
        """The service's queries per second over the reference's."""
        service, reference = self.point("service", load), self.point("reference", load)
        if service is None or reference is None or not reference.num_queries:
            return None
        return service.queries_per_second / reference.queries_per_second


def measure_throughput(
    subject: Subject,
    queries: Sequence[str],
    loads: Sequence[Load],
    *,
    with_reference: bool,
    top_k: int,
    seconds: float,
    report: Callable[[str], None],
    overlap: bool = False,
) -> Throughput:
    """All figures of a run, each load for about so many seconds; `overlap` is the service's.

    Raises BenchError when a server or a client fails.
    """
    encoded = encode_all([*queries, *(canary.query for canary in subject.manifest.canaries)], subject.encoder)
    asked = EncodedQueries(encoded.texts[: len(set(queries))], encoded.vectors_ND[: len(set(queries))])
    encoder = subject.encoder if subject.is_encoding else None
    bare = measure_bare(subject.folder, asked, top_k=top_k, seconds=seconds, encoder=encoder)
    report(f"bare: {bare.batched_queries_per_second:.0f} q/s batched, one query {1000 * bare.one_query_seconds:.1f} ms")
    with tempfile.TemporaryDirectory() as scratch:
        arguments = [str(subject.folder)]
        if not subject.is_encoding:
            arguments.append(str(_saved(encoded, Path(scratch))))
        runs: dict[ServerName, ServerRun] = {}
        names: tuple[ServerName, ...] = ("service", "reference") if with_reference else ("service",)
        for name in names:
            own = ["--overlap"] if overlap and name == "service" else []
            runs[name] = _run(name, [*arguments, *own], asked.texts, loads, top_k=top_k, seconds=seconds, report=report)
    return Throughput(
        folder=subject.folder,
        manifest=subject.manifest,
        is_encoding=subject.is_encoding,
        overlap=overlap,
        top_k=top_k,
        num_queries=len(asked.texts),
        bare=bare,
        service=runs["service"],
        reference=runs.get("reference"),
    )


def _saved(encoded: EncodedQueries, scratch: Path) -> Path:
    path = scratch / "queries.npz"
    encoded.save(path)
    return path


def _run(
    name: ServerName,
    arguments: Sequence[str],
    queries: tuple[str, ...],
    loads: Sequence[Load],
    *,
    top_k: int,
    seconds: float,
    report: Callable[[str], None],
) -> ServerRun:
    points: list[LoadPoint] = []
    forget_files(Path(arguments[0]))
    with running_server(_SERVERS[name], arguments) as server:
        report(f"{name}: port after {server.seconds_to_port:.1f} s, ready after {server.seconds_to_ready:.1f} s")
        for load in loads:
            spec = LoadSpec(server.url, load, queries, top_k, seconds)
            point = _measure(name, server, spec)
            points.append(point)
            report(
                f"{name} {load}: {point.queries_per_second:.1f} q/s, p50 {1000 * point.p50_seconds:.0f} ms, "
                f"p99 {1000 * point.p99_seconds:.0f} ms, {point.num_failed} failed"
            )
        return ServerRun(server.seconds_to_port, server.seconds_to_ready, tuple(points))


def _measure(name: ServerName, server: Server, spec: LoadSpec) -> LoadPoint:
    before, machine_before, start = server.usage(), machine_cpu_seconds(), time.perf_counter()
    with started_client("load", orjson.dumps(spec)) as client:
        answered = client.answer(within_seconds=spec.seconds + _SPARE_SECONDS)
        client_seconds = client.cpu_seconds()
    after, machine_seconds = server.usage(), machine_cpu_seconds() - machine_before
    others_seconds = machine_seconds - client_seconds - (after.cpu_seconds - before.cpu_seconds)
    others_share = max(0.0, others_seconds / ((time.perf_counter() - start) * num_cores()))
    result = TypeAdapter(LoadResult).validate_json(answered)
    if not result.latencies_seconds:
        raise BenchError(f"{name}: not one request was answered under the load {spec.load}")
    return _point(name, spec.load, result, before, after, others_cpu_share=others_share)


def _point(
    name: ServerName, load: Load, result: LoadResult, before: Usage, after: Usage, *, others_cpu_share: float
) -> LoadPoint:
    latencies = result.latencies_seconds
    return LoadPoint(
        server=name,
        load=load,
        num_queries=len(latencies) * load.batch,
        num_failed=result.num_failed,
        seconds=result.seconds,
        p50_seconds=percentile(latencies, 50),
        p95_seconds=percentile(latencies, 95),
        p99_seconds=percentile(latencies, 99),
        server_cpu_seconds=after.cpu_seconds - before.cpu_seconds,
        client_cpu_seconds=result.client_cpu_seconds,
        others_cpu_share=others_cpu_share,
        resident_bytes=after.resident_bytes,
        private_bytes=after.private_bytes,
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest of the ordered values that so many percent of them do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
