"""Several processes behind one port, seen from outside: one service, whichever of them answers."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest

from retriever_server.index import build_index
from retriever_server.schema import Passage
from tests.retriever_server.bag_of_words import BagOfWordsEncoder
from tests.retriever_server.conftest import write_corpus
from tests.retriever_server.server_processes import await_clients, index_files_of, line_with, running

pytestmark = pytest.mark.slow


def workers_of(pid: int) -> list[psutil.Process]:
    """The processes that search."""
    return [child for child in psutil.Process(pid).children() if "spawn_main" in " ".join(child.cmdline())]


def serving_of(pid: int, folder: Path, *, number: int = 2) -> list[int]:
    """The workers that have the index open, once there are so many."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pids = [worker.pid for worker in workers_of(pid) if str(folder) in index_files_of(worker.pid)]
        if len(pids) == number:
            return pids
        time.sleep(0.05)
    raise AssertionError(f"{number} workers did not come up")


def first_id(base: str, query: str) -> str:
    """The best passage, over a connection of its own; a busy service is asked again, as every client must."""
    deadline = time.monotonic() + 20
    while (reply := httpx.post(f"{base}/retrieve", json={"query": query, "topk": 1}, timeout=20)).status_code == 503:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return str(reply.json()["result"][0][0]["id"])


def count_of(base: str, name: str) -> float:
    """The value of a metric without labels."""
    lines = httpx.get(f"{base}/metrics", timeout=20).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def test_workers_are_one_service(planets_folder: Path, tmp_path: Path) -> None:
    """Would catch counts of one worker told as all, a reload that one worker alone did or that is half done when it
    fails, a dead worker that stays dead or comes back with another index, and a stop that leaves a process behind."""
    folder = shutil.copytree(planets_folder, tmp_path / "index")
    with running(folder, "--two-workers") as process:
        base = line_with("ready", process).split()[1].removesuffix("/retrieve")
        first, second = serving_of(process.pid, folder)
        assert [first_id(base, "red Phobos") for _ in range(20)] == ["mars"] * 20
        assert count_of(base, "retriever_queries_total") == 20

        moons = [Passage("phobos", "Phobos", "Phobos is a moon of Mars.")]
        build_index(write_corpus(tmp_path / "corpus.jsonl", moons), folder, BagOfWordsEncoder())
        os.kill(first, signal.SIGKILL)
        assert "a worker ended (exit code -9); another one starts" in line_with("another one", process)
        # The new worker opens the new index: no client may get one answer or the other by chance.
        deadline = time.monotonic() + 20
        while first_id(base, "red Phobos") == "mars":
            assert time.monotonic() < deadline
        serving_of(process.pid, folder)
        assert [first_id(base, "red Phobos") for _ in range(20)] == ["phobos"] * 20

        (folder / "manifest.json").rename(tmp_path / "manifest.json")
        refused = httpx.post(f"{base}/admin/reload", timeout=20)
        assert refused.status_code == 409 and "the old one serves on" in refused.json()["detail"]
        (tmp_path / "manifest.json").rename(folder / "manifest.json")
        reloaded = httpx.post(f"{base}/admin/reload", timeout=20)
        assert (reloaded.status_code, reloaded.json()["index"]["num_passages"]) == (200, 1)
        process.send_signal(signal.SIGHUP)
        assert line_with("reloaded", process) == "reloaded: 1 passages\n"

        others = workers_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert line_with("stopped", process)
        assert process.wait(10) == 0
        assert psutil.wait_procs(others, timeout=1)[1] == [] and second not in psutil.pids()


def test_requests_under_way_in_workers_are_answered_before_they_stop(planets_folder: Path) -> None:
    """Would catch a supervisor that ends its workers in the middle of a search."""
    with running(planets_folder, "--two-workers", "--slow-search") as process:
        url = line_with("ready", process).split()[1]
        answers: list[httpx.Response] = []
        clients = [
            threading.Thread(target=lambda: answers.append(httpx.post(url, json={"query": "Mars"}, timeout=20)))
            for _ in range(4)
        ]
        for client in clients:
            client.start()
        await_clients(process, 4)
        process.send_signal(signal.SIGTERM)
        for client in clients:
            client.join()
        assert process.wait(10) == 0
    assert [answer.json()["result"][0][0]["id"] for answer in answers] == ["mars"] * 4


def test_workers_end_with_a_supervisor_that_was_killed(planets_folder: Path) -> None:
    """Would catch workers that hold the port for ever, so that the service cannot be started again."""
    with running(planets_folder, "--two-workers") as process:
        base = line_with("answers 503", process).split()[0]
        assert httpx.get(f"{base}/ready", timeout=20).headers["retry-after"]
        line_with("ready", process)
        workers = workers_of(process.pid)
        process.kill()
        process.wait(10)
        assert len(workers) == 2
        assert psutil.wait_procs(workers, timeout=10)[1] == []


def test_a_folder_that_no_worker_can_load_ends_the_service(planets_folder: Path, tmp_path: Path) -> None:
    """Would catch a supervisor that starts workers for ever, none of which can serve."""
    folder = shutil.copytree(planets_folder, tmp_path / "index")
    with running(folder, "--two-workers", "bm25") as process:
        assert "has no bm25 part, only dense; build it again" in line_with("has no bm25 part", process)
        assert process.wait(20) == 1
