"""A soak: the service under many clients for a long time, every answer held against brute force."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import orjson
from pydantic import TypeAdapter

from retriever_server.bench.load import Load, LoadSpec
from retriever_server.bench.oracle import MOST_HITS, write_oracle
from retriever_server.bench.process import Server, Usage, running_server, started_client
from retriever_server.bench.queries import encode_all
from retriever_server.bench.soak_client import SoakResult, SoakSpec
from retriever_server.bench.subject import Subject

MOST_GROWTH = 0.05
_NUM_SAMPLES, _LEAST_SAMPLE_SECONDS = 200, 0.2
_SPARE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Soak:
    """What clients saw, and the server's use at even intervals."""

    seconds: float
    num_clients: int
    result: SoakResult
    samples: tuple[Usage, ...]

    @property
    def private_growth(self) -> float:
        """Of the memory that no file stands behind: the last fifth over the second fifth, less one."""
        return _growth([sample.private_bytes for sample in self.samples])

    @property
    def resident_growth(self) -> float:
        """The same with what is mapped from files, of which a service gets more as it touches them."""
        return _growth([sample.resident_bytes for sample in self.samples])

    @property
    def faults(self) -> list[str]:
        """What must not be; empty when all is well."""
        found = self.result
        counts = {
            "wrong answers": found.num_wrong,
            "lost connections": found.num_lost_connections,
            **{f"answers with status {status}": count for status, count in found.statuses.items()},
        }
        faults = [f"{count:,} {what}" for what, count in counts.items() if count]
        if not found.num_queries:
            faults.append("not one query was answered")
        if self.resident_growth > MOST_GROWTH:
            faults.append(f"memory grew by {self.resident_growth:.1%}")
        return faults


def measure_soak(
    subject: Subject, queries: Sequence[str], *, seconds: float, num_clients: int, report: Callable[[str], None]
) -> Soak:
    """Clients ask mixed k and mixed numbers of the queries, whose vectors are made before, for so long.

    Raises BenchError when the index is approximate, or when the server or the clients' process fails.
    """
    canaries = [canary.query for canary in subject.manifest.canaries]
    encoded = encode_all([*queries, *canaries], subject.encoder)
    with tempfile.TemporaryDirectory() as scratch:
        vectors, oracle = Path(scratch) / "queries.npz", Path(scratch) / "oracle.npz"
        encoded.save(vectors)
        write_oracle(subject.folder, encoded, oracle)
        report(f"the right answers to {len(encoded.texts):,} queries are known")
        with running_server("serve", [str(subject.folder), str(vectors)]) as server:
            _warm_up(server, encoded.texts, num_clients)
            report(f"every query was asked for {MOST_HITS} passages: {server.usage().resident_bytes / 2**20:.0f} MiB")
            spec = SoakSpec(server.url, subject.folder, oracle, num_clients, seconds)
            return _soaked(spec, server, report)


def _warm_up(server: Server, queries: tuple[str, ...], num_clients: int) -> None:
    """Have all queries asked for the most passages, by as many clients: what is mapped from files is touched then."""
    load = Load(num_clients, math.ceil(len(queries) / num_clients))
    spec = LoadSpec(server.url, load, queries, MOST_HITS, seconds=0.0)
    with started_client("load", orjson.dumps(spec)) as client:
        client.answer(within_seconds=_SPARE_SECONDS)


def _soaked(spec: SoakSpec, server: Server, report: Callable[[str], None]) -> Soak:
    samples: list[Usage] = []
    with started_client("soak_client", orjson.dumps(spec, default=str)) as client:
        next_share = 0.1
        for share, usage in _sampled(server, client.is_running, spec.seconds):
            samples.append(usage)
            if share >= next_share:
                report(f"{share:.0%}: {usage.private_bytes / 2**20:.0f} MiB private")
                next_share = share + 0.1
        result = TypeAdapter(SoakResult).validate_json(client.answer(within_seconds=_SPARE_SECONDS))
    return Soak(spec.seconds, spec.num_clients, result, tuple(samples))


def _sampled(server: Server, is_running: Callable[[], bool], seconds: float) -> Iterator[tuple[float, Usage]]:
    """The share of the time that is over, and what the server uses then."""
    start = time.monotonic()
    while (share := (time.monotonic() - start) / seconds) < 1 and is_running():
        time.sleep(max(seconds / _NUM_SAMPLES, _LEAST_SAMPLE_SECONDS))
        yield share, server.usage()


def _growth(values: Sequence[int]) -> float:
    fifth = max(1, len(values) // 5)
    early, late = values[fifth : 2 * fifth] or values, values[-fifth:] or values
    return median(late) / median(early) - 1
