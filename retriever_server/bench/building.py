"""A build of an index of any size: how fast, in how much memory, and the same after it was killed again and again."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any

from retriever_server.bench.subject import Shape
from retriever_server.bench.synthetic import write_synthetic_corpus
from retriever_server.errors import BenchError
from retriever_server.manifest import MANIFEST_FILE, read_manifest
from retriever_server.schema import RetrieverName
from retriever_server.store import PASSAGES_FILE

ROOM_BYTES = 2 * 1024**3
"""What a build may hold beside the index itself."""
_POLL_SECONDS = 0.02
_LATEST_KILL = 0.6  # Of the seconds of a whole build: what the builds before have encoded is not encoded again.


@dataclass(frozen=True, slots=True)
class BuildRun:
    """One process that built, to its end or until it was killed; its largest resident memory, mapped files with it."""

    seconds: float
    peak_bytes: int
    is_killed: bool


@dataclass(frozen=True, slots=True)
class Build:
    """A build that was left alone, and one that was killed: `is_equal` compares all files but the manifest."""

    num_passages: int
    index_bytes: int
    straight: BuildRun
    killed: tuple[BuildRun, ...]
    is_equal: bool | None

    @property
    def room_bytes(self) -> int:
        """What the process held at most beside the index."""
        return max(run.peak_bytes for run in (self.straight, *self.killed)) - self.index_bytes

    @property
    def faults(self) -> list[str]:
        """Empty when all is as it should be."""
        too_much = f"a build held {self.room_bytes / 2**30:.2f} GiB beside the index, more than {ROOM_BYTES >> 30} GiB"
        return [
            *([too_much] if self.room_bytes > ROOM_BYTES else []),
            *(["what was killed and resumed is another index"] if self.is_equal is False else []),
        ]


def measure_build(
    work: Path,
    shape: Shape,
    *,
    retriever: RetrieverName,
    corpus: Path | None,
    kills: int,
    report: Callable[[str], None],
) -> Build:
    """Builds of synthetic vectors over `corpus`, or over synthetic passages, in the folder `work`, which is left full.

    Raises BenchError when a build fails by itself.
    """
    if corpus is None:
        corpus = work / "corpus.jsonl"
        write_synthetic_corpus(corpus, shape.num_passages)
    arguments = [str(corpus), retriever, str(shape.dimension or 768), shape.kind]
    whole, again = work / "whole", work / "again"
    straight = _run([*arguments, str(whole)])
    report(f"built in {straight.seconds:.0f} s")
    runs = _killed_builds([*arguments, str(again)], straight.seconds, kills, report) if kills else ()
    files = [path for path in _files(whole) if path.name != PASSAGES_FILE]
    return Build(
        num_passages=read_manifest(whole).num_passages,
        index_bytes=sum(path.stat().st_size for path in files),
        straight=straight,
        killed=runs,
        is_equal=_digests(whole) == _digests(again) if kills else None,
    )


def _killed_builds(
    arguments: list[str], whole_seconds: float, kills: int, report: Callable[[str], None]
) -> tuple[BuildRun, ...]:
    """Builds that are killed, each of which takes up what the one before left, and a last one that is not."""
    moments, runs = random.Random(0), list[BuildRun]()
    for number in range(kills):
        runs.append(_run(arguments, kill_after=moments.random() * _LATEST_KILL * whole_seconds))
        what = "killed" if runs[-1].is_killed else "ended"
        report(f"{what} after {runs[-1].seconds:.1f} s ({number + 1} of {kills})")
    runs.append(_run(arguments))
    report(f"resumed and built in {runs[-1].seconds:.0f} s")
    return tuple(runs)


def build_json(build: Build) -> dict[str, Any]:
    """The JSON form; `faults` is empty when all is well."""
    return {"faults": build.faults, "room_bytes": build.room_bytes, **asdict(build)}


def build_lines(build: Build) -> Iterator[str]:
    """Speed, memory, kills, and the verdict last."""
    seconds, room_gib, index_gib = build.straight.seconds, build.room_bytes / 2**30, build.index_bytes / 2**30
    yield f"{build.num_passages:,} passages in {seconds:.1f} s, {build.num_passages / seconds:,.0f} a second"
    yield f"memory: at most {room_gib:.2f} GiB resident beside the index of {index_gib:.2f} GiB"
    if build.is_equal is not None:
        num_killed = sum(run.is_killed for run in build.killed)
        verdict = "the same" if build.is_equal else "NOT the same"
        yield f"killed {num_killed} times and resumed: {verdict}, byte for byte"
    yield f"FAULTS: {'; '.join(build.faults)}" if build.faults else "no faults"


def _run(arguments: list[str], *, kill_after: float | None = None) -> BuildRun:
    """Seconds are counted from where the process has loaded its libraries and begins to build."""
    command = [sys.executable, "-m", "retriever_server.bench.build_process", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        start, peak_bytes, is_killed = time.perf_counter(), 0, False
        while process.poll() is None:
            peak_bytes = max(peak_bytes, _peak_bytes(process.pid))
            if kill_after is not None and not is_killed and time.perf_counter() - start >= kill_after:
                process.kill()
                is_killed = True
            time.sleep(_POLL_SECONDS)
        seconds = time.perf_counter() - start
    if process.returncode not in (0, -signal.SIGKILL if is_killed else 0):
        raise BenchError(f"the build ended with status {process.returncode}; its own words are above")
    return BuildRun(seconds, peak_bytes, process.returncode != 0)


def _peak_bytes(pid: int) -> int:
    """The largest resident memory of a process so far; the system's own count of it begins with its parent's."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _digests(folder: Path) -> dict[str, str]:
    digests = {}
    for path in _files(folder):
        if path.name != MANIFEST_FILE:
            with path.open("rb") as file:
                digests[str(path.relative_to(folder))] = file_digest(file, "sha256").hexdigest()
    return digests
