"""The service over Ray Serve deployments against the same service over the whole index."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from fastapi import FastAPI

from tests.retriever_server.conftest import post
from tests.retriever_server.server_processes import line_with, running
from tests.retriever_server.test_remote import QUERIES


@pytest.mark.engine
def test_two_shards_of_two_replicas_answer_as_the_whole_and_leave_nothing_behind(
    planets_folder: Path, planets_app: FastAPI
) -> None:
    """Would catch local rows, ties in the order of the shards, answers of batches that are under way together and get
    mixed up, an answer without a shard that is gone, and processes of Ray's that outlive the service."""
    body = {"queries": QUERIES, "topk": 5, "return_scores": True}
    expected = post(planets_app, body)[0].json()
    with running(planets_folder, "--ray") as process:
        base = line_with("answers 503", process).split()[0]
        assert httpx.post(f"{base}/retrieve", json=body, timeout=20).status_code == 503
        url = line_with("ready: ", process).split()[1]
        assert httpx.post(url, json=body, timeout=60).json() == expected

        singles = [{**body, "queries": [f"{query} {number}"]} for number in range(6) for query in QUERIES]
        with ThreadPoolExecutor(8) as clients:
            answers = [
                answer.json() for answer in clients.map(lambda one: httpx.post(url, json=one, timeout=60), singles)
            ]
        assert answers == [answer.json() for answer in post(planets_app, *singles)]

        shards = [child for child in children_of(process.pid) if is_replica_of("shard-1", child)]
        assert len(shards) == 2
        for shard in shards:
            os.kill(shard.pid, signal.SIGKILL)
        statuses: list[int] = []
        deadline = time.monotonic() + 60
        while not statuses or statuses[-1] != 200:
            assert time.monotonic() < deadline
            response = httpx.post(url, json={**body, "queries": [f"Mars {len(statuses)}", *QUERIES]}, timeout=60)
            statuses.append(response.status_code)
            if response.status_code == 200:
                assert response.json()["result"][1:] == expected["result"]
            else:
                assert (response.status_code, response.headers["retry-after"]) == (503, "2")
            time.sleep(0.2)

        assert httpx.post(f"{base}/admin/reload", timeout=60).status_code == 200
        assert httpx.post(url, json=body, timeout=60).json() == expected
        children = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert line_with("stopped", process)
        assert process.wait(30) == 0
    assert psutil.wait_procs(children, timeout=5)[1] == []


def children_of(pid: int) -> list[psutil.Process]:
    """All that a process has started, and what they have."""
    return psutil.Process(pid).children(recursive=True)


def is_replica_of(part: str, process: psutil.Process) -> bool:
    """By its title, which Ray sets."""
    return part in " ".join(process.cmdline()) and "Replica" in " ".join(process.cmdline())
