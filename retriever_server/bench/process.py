"""Programs under test as processes: started, waited for, measured, ended."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import psutil

from retriever_server.errors import BenchError

_POLL_SECONDS = 0.05
_END_SECONDS = 30.0
_ADDRESS = re.compile(r"http://\S+:\d+")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used. `private_bytes` is what no file on disk stands behind."""

    cpu_seconds: float
    resident_bytes: int
    private_bytes: int


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers at `url`; the seconds are from the start of its process."""

    url: str
    process: psutil.Popen
    seconds_to_port: float
    seconds_to_ready: float

    def usage(self) -> Usage:
        """What it has used until now. Raises BenchError when it has ended."""
        try:
            memory, times = self.process.memory_info(), self.process.cpu_times()
        except psutil.Error as error:
            raise BenchError(f"the server has ended with status {self.process.poll()}") from error
        return Usage(times.user + times.system, memory.rss, memory.rss - memory.shared)


def machine_cpu_seconds() -> float:
    """What all cores have computed since the machine started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def num_cores() -> int:
    """Of the machine."""
    return psutil.cpu_count() or 1


@contextmanager
def running_server(module: str, arguments: Sequence[str], *, ready_within_seconds: float = 300.0) -> Iterator[Server]:
    """A server of this package that is ready, gone afterwards. Raises BenchError when it does not get ready."""
    start = time.perf_counter()
    process = psutil.Popen(
        [sys.executable, "-m", f"retriever_server.bench.{module}", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        found = _ADDRESS.search(process.stdout.readline())
        if found is None:
            raise BenchError(f"the server {module} ended before it opened a port; its own words are above")
        deadline = start + ready_within_seconds
        _wait_for(f"{found[0]}/nowhere", process, deadline, statuses=range(200, 600))
        seconds_to_port = time.perf_counter() - start
        _wait_for(f"{found[0]}/ready", process, deadline, statuses=range(200, 300))
        yield Server(found[0], process, seconds_to_port, time.perf_counter() - start)
    finally:
        _end(process)


def _wait_for(url: str, process: psutil.Popen, deadline: float, *, statuses: range) -> None:
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise BenchError(f"the server ended with status {process.poll()}; its own words are above")
        try:
            if httpx.get(url, timeout=10).status_code in statuses:
                return
        except httpx.TransportError:
            pass
        time.sleep(_POLL_SECONDS)
    raise BenchError(f"{url} did not answer as it should in time")


def _end(process: psutil.Popen) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


@dataclass(frozen=True, slots=True)
class Client:
    """A client's process, which has read what it is to do."""

    module: str
    process: subprocess.Popen[bytes]
    children_seconds_before: float

    def cpu_seconds(self) -> float:
        """What it has used, once it has ended."""
        return _ended_children_seconds() - self.children_seconds_before

    def is_running(self) -> bool:
        """False once it has ended."""
        return self.process.poll() is None

    def answer(self, *, within_seconds: float) -> bytes:
        """What it writes to stdout by its end. Raises BenchError when it fails or takes longer."""
        try:
            answered, _ = self.process.communicate(timeout=within_seconds)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"the client {self.module} had not ended after {within_seconds:g} s more") from error
        if self.process.returncode:
            raise BenchError(f"the client {self.module} failed ({self.process.returncode}); its own words are above")
        return answered


@contextmanager
def started_client(module: str, spec: bytes) -> Iterator[Client]:
    """A client of this package under way, gone afterwards; it gets the spec on stdin."""
    command = [sys.executable, "-m", f"retriever_server.bench.{module}"]
    with tempfile.TemporaryFile() as file:
        file.write(spec)
        file.seek(0)
        process = subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE)
    with process:
        try:
            yield Client(module, process, _ended_children_seconds())
        finally:
            process.kill()


def _ended_children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
