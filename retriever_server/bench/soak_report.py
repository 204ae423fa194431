"""A soak as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from retriever_server.bench.soak import Soak


def soak_json(soak: Soak) -> dict[str, Any]:
    """The JSON form; `faults` is empty when all is well."""
    growth = {"private_growth": soak.private_growth, "resident_growth": soak.resident_growth}
    return {"faults": soak.faults, **growth, **asdict(soak)}


def soak_lines(soak: Soak) -> Iterator[str]:
    """Counts, memory, and the verdict last."""
    found = soak.result
    yield (
        f"{found.num_queries:,} queries in {found.num_requests:,} requests by {soak.num_clients} clients over "
        f"{soak.seconds / 60:g} min, {found.num_queries / soak.seconds:.0f} q/s; {found.num_wrong} wrong, "
        f"{found.num_deliberate_503} deliberate 503"
    )
    last = soak.samples[-1]
    yield (
        f"memory: {last.resident_bytes / 2**20:.0f} MiB resident ({soak.resident_growth:+.1%}), "
        f"{last.private_bytes / 2**20:.0f} MiB of them private ({soak.private_growth:+.1%})"
    )
    yield from (f"  {example}" for example in found.examples)
    yield f"FAULTS: {'; '.join(soak.faults)}" if soak.faults else "no faults"
