"""A run as JSON, and as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from retriever_server.bench.throughput import LoadPoint, Throughput

HEADINGS = (
    "server, clients x queries",
    "q/s",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "failed",
    "server CPU ms/q",
    "others %",
    "RSS MiB",
    "x",
)


def throughput_json(measured: Throughput) -> dict[str, Any]:
    """The JSON form, with each point's queries per second."""
    found = asdict(measured)
    found["folder"] = str(measured.folder)
    for run, name in ((measured.service, "service"), (measured.reference, "reference")):
        if run is not None:
            for row, point in zip(found[name]["points"], run.points, strict=True):
                row["queries_per_second"] = point.queries_per_second
    loads = [point.load for point in measured.service.points]
    found["speed_up"] = {str(load): measured.speed_up(load) for load in loads}
    return found


def throughput_rows(measured: Throughput) -> Iterator[tuple[str, ...]]:
    """The cells of a table under HEADINGS; the last is the service's q/s over the reference's."""
    for run in (measured.service, measured.reference):
        for point in run.points if run is not None else ():
            speed_up = measured.speed_up(point.load) if point.server == "service" else None
            yield (*_cells(point), f"{speed_up:.2f}" if speed_up is not None else "")


def summary_lines(measured: Throughput) -> Iterator[str]:
    """What the bare search reaches, and how near the service comes to it."""
    bare = measured.bare
    parts = f"scan {1000 * bare.scan_seconds:.1f} ms"
    if bare.encoder_seconds is not None:
        parts += f" + encoder {1000 * bare.encoder_seconds:.1f} ms"
    batched = f"{bare.batched_queries_per_second:.1f} q/s with {bare.num_queries} queries in one search"
    yield f"bare: {batched}; one query {parts}"
    for point in measured.service.points:
        if (point.load.concurrency, point.load.batch) == (1, 1):
            yield f"one query at a time: {point.p50_seconds / bare.one_query_seconds:.2f} of the bare time"
        elif not measured.is_encoding:
            ratio = bare.batched_queries_per_second / point.queries_per_second
            yield f"{point.load}: the bare search is {ratio:.2f} times as fast"
    start = measured.service
    yield f"index, dropped from memory: opens in {bare.open_seconds:.2f} s"
    yield f"start: port after {start.seconds_to_port:.2f} s, ready after {start.seconds_to_ready:.2f} s"


def _cells(point: LoadPoint) -> tuple[str, ...]:
    milliseconds = (1000 * seconds for seconds in (point.p50_seconds, point.p95_seconds, point.p99_seconds))
    return (
        f"{point.server} {point.load}",
        f"{point.queries_per_second:.1f}",
        *(f"{value:.1f}" for value in milliseconds),
        str(point.num_failed),
        f"{point.server_cpu_milliseconds_per_query:.2f}",
        f"{100 * point.others_cpu_share:.0f}",
        f"{point.resident_bytes / 2**20:.0f}",
    )
