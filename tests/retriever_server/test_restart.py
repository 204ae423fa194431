"""A service that is killed under load, and clients that try again as verl's do."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.retriever_server.bag_of_words import PLANETS
from tests.retriever_server.server_processes import SERVER, line_with

_MAX_ATTEMPTS = 10


def ask_as_verl(url: str, query: str, statuses: list[str]) -> str:
    """The id of the best passage; ten attempts, after the n-th a wait of n seconds, as verl's SearchTool does."""
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        try:
            response = httpx.post(url, json={"query": query, "topk": 1}, timeout=30)
        except httpx.TransportError as error:
            statuses.append(type(error).__name__)
        else:
            statuses.append(str(response.status_code))
            if response.status_code not in (500, 502, 503, 504):
                return str(response.json()["result"][0][0]["id"])
        time.sleep(attempt)
    return "lost"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--two-workers"]], ids=["one process", "two workers"])
def test_a_kill_and_a_restart_lose_nothing(arguments: list[str], planets_folder: Path) -> None:
    """Would catch a restart that takes longer than the clients' patience, or a status that they do not try again."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, statuses, answers = f"http://127.0.0.1:{port}/retrieve", list[str](), list[tuple[str, str]]()
    is_over = threading.Event()

    def client(number: int) -> None:
        turn = number
        while not is_over.is_set():
            asked = PLANETS[turn % len(PLANETS)]
            answers.append((asked.id, ask_as_verl(url, f"{asked.title} {asked.text}", statuses)))
            turn += 1

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-u", str(SERVER), str(planets_folder), str(port), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    clients = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    with start() as first:
        line_with("ready", first)
        for thread in clients:
            thread.start()
        while len(answers) < 3 * len(clients):
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
    num_before = len(answers)
    time.sleep(0.5)
    with start() as second:
        line_with("ready", second)
        while len(answers) < num_before + 3 * len(clients):
            time.sleep(0.05)
        is_over.set()
        for thread in clients:
            thread.join()
        second.send_signal(signal.SIGTERM)
    assert [found for asked, found in answers] == [asked for asked, found in answers]
    assert any(status != "200" for status in statuses)
