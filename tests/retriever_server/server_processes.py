"""The service as a process, seen from outside: its lines, its connections and its files."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

SERVER = Path(__file__).with_name("bag_of_words.py")


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A server process on a free port."""
    command = [sys.executable, "-u", str(SERVER), str(folder), "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def await_clients(process: subprocess.Popen[str], count: int) -> None:
    """Wait until the server and its workers have taken in so many connections; what they carry follows at once."""
    deadline = time.monotonic() + 20
    server = psutil.Process(process.pid)
    while True:
        members = [server, *server.children(recursive=True)]
        connections = [connection for member in members for connection in member.net_connections("tcp")]
        if sum(connection.status == psutil.CONN_ESTABLISHED for connection in connections) >= count:
            break
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.1)


def line_with(word: str, process: subprocess.Popen[str]) -> str:
    """The next line of its output that holds the word."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if word in line:
            return line
    pytest.fail(f"no line with {word!r}: {''.join(seen)}")


def index_files_of(pid: int) -> str:
    """The lines of its memory map that name an index; a file that is no longer in its folder says `(deleted)`."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return "\n".join(line for line in maps.splitlines() if "index.faiss" in line or "passages.jsonl" in line)
