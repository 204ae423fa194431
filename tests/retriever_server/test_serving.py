"""The service as a process: what it says, how it starts and how it ends."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import orjson
import psutil
import pytest
from fastapi import FastAPI

from retriever_server.encoders import Encoder
from retriever_server.errors import IndexFolderError, RetrieverServerError, ServingError
from retriever_server.index import build_index
from retriever_server.process import server_config
from retriever_server.schema import Passage
from retriever_server.serving import serve
from retriever_server.settings import ServiceSettings
from tests.retriever_server.bag_of_words import BagOfWordsEncoder
from tests.retriever_server.conftest import write_corpus

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


def test_it_says_when_it_is_ready_answers_and_ends_cleanly(planets_folder: Path) -> None:
    """Would catch a server that dies by its signal, cuts off a request, or closes idle connections early."""
    with running(planets_folder) as process:
        ready = line_with("ready", process)
        url = re.search(r"http://127\.0\.0\.1:\d+/retrieve", ready)
        assert url is not None and "6 passages" in ready
        with httpx.Client() as client:
            assert client.post(url[0], json={"query": "Mars", "topk": 1}).json()["result"][0][0]["id"] == "mars"
            process.send_signal(signal.SIGTERM)
            assert line_with("stopped", process)
        assert process.wait(10) == 0


def test_requests_under_way_are_answered_before_it_stops(planets_folder: Path) -> None:
    """Would catch a SIGTERM that resets the connections of a rollout in the middle of a search."""
    with running(planets_folder, "--slow-search") as process:
        url = line_with("ready", process).split()[1]
        answers: list[httpx.Response] = []
        client = threading.Thread(target=lambda: answers.append(httpx.post(url, json={"query": "Mars"}, timeout=10)))
        client.start()
        await_clients(process, 1)
        process.send_signal(signal.SIGTERM)
        client.join()
        assert process.wait(10) == 0
    assert answers[0].json()["result"][0][0]["id"] == "mars"


def test_while_loading_it_answers_503_and_can_be_stopped(planets_folder: Path) -> None:
    """Would catch a port that refuses connections while the model loads: clients give up after 45 s."""
    with running(planets_folder, "--never-loads") as process:
        base = line_with("answers 503", process).split()[0]
        for attempt in range(50):
            try:
                response = httpx.get(f"{base}/health")
                break
            except httpx.TransportError:
                assert attempt < 49
                time.sleep(0.1)
        assert (response.status_code, response.headers["retry-after"]) == (503, "2")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def index_files_of(pid: int) -> str:
    """The lines of its memory map that name an index; a file that is no longer in its folder says `(deleted)`."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return "\n".join(line for line in maps.splitlines() if "index.faiss" in line or "passages.jsonl" in line)


def test_sighup_serves_the_folder_as_it_is_now_or_says_why_not(planets_folder: Path, tmp_path: Path) -> None:
    """Would catch a SIGHUP that kills the server, is not told of, or holds the old index's disk space."""
    folder = shutil.copytree(planets_folder, tmp_path / "index")
    with running(folder) as process, httpx.Client() as client:
        url = line_with("ready", process).split()[1]
        found = client.post(url, json={"query": "moon Mars", "topk": 1})
        moons = [Passage("phobos", "Phobos", "Phobos is a moon of Mars.")]
        build_index(write_corpus(tmp_path / "corpus.jsonl", moons), folder, BagOfWordsEncoder())
        process.send_signal(signal.SIGHUP)
        assert line_with("reloaded", process) == "reloaded: 1 passages\n"
        assert "(deleted)" not in index_files_of(process.pid)
        found_after = client.post(url, json={"query": "moon Mars", "topk": 1})
        (folder / "manifest.json").unlink()
        process.send_signal(signal.SIGHUP)
        assert "the old one serves on" in line_with("not reloaded", process)
        found_last = client.post(url, json={"query": "Mars moon", "topk": 1})
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    ids = [response.json()["result"][0][0]["id"] for response in (found, found_after, found_last)]
    assert ids == ["mars", "phobos", "phobos"]


def test_it_stops_while_a_reload_is_stuck(planets_folder: Path) -> None:
    """Would catch a SIGTERM that waits for a download, until the supervisor kills the requests under way too."""
    with running(planets_folder, "--loads-once") as process, httpx.Client() as client:
        url = line_with("ready", process).split()[1]
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert client.post(url, json={"query": "Mars"}).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_body_without_end_gets_its_413_over_a_real_socket(planets_folder: Path) -> None:
    """Would catch a refusal that the client never reads, because its connection is reset while it sends."""
    chunk = b" " * 2**20
    with running(planets_folder) as process, httpx.Client(timeout=20) as client:
        url = line_with("ready", process).split()[1]
        headers = {"Content-Type": "application/json"}
        assert client.post(url, content=(chunk for _ in range(40)), headers=headers).status_code == 413
        assert client.post(url, content=chunk * 33, headers=headers).status_code == 413
        assert client.post(url, json={"query": "Mars"}).status_code == 200


def test_idle_connections_outlive_a_turn_of_a_rollout(planets_app: FastAPI) -> None:
    """Would catch the server's own default of 5 s: pooled clients then burn a retry on a reset connection."""
    assert server_config(planets_app).timeout_keep_alive >= 75


def test_the_log_goes_to_stderr_when_it_is_wanted(planets_folder: Path) -> None:
    """Would catch an option that does not reach the app, or the web server's own log beside ours."""
    with running(planets_folder, "--log-json") as process, httpx.Client() as client:
        url = line_with("ready", process).split()[1]
        client.post(url, json={"query": "Mars"}, headers={"X-Request-ID": "seven"})
        line = orjson.loads(line_with("seven", process))
        assert (line["id"], line["status"], line["client"]) == ("seven", 200, "127.0.0.1")


def must_not_load(name: str) -> Encoder:
    """The model must not be touched before all else is known to be well."""
    raise AssertionError("the model was loaded")


def test_a_port_in_use_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    """Would catch ten seconds of loading before the bad news, or a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(ServingError, match=rf"port {port} on 127\.0\.0\.1 is in use; give another --port"):
            serve(tmp_path / "no index here", port=port, load_encoder=must_not_load)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("192.0.2.1", 0, "cannot listen on"),
        ("no such host", 0, "cannot listen on"),
        ("127.0.0.1", 70000, "65535"),
    ],
)
def test_an_address_that_cannot_be_had_is_told(host: str, port: int, message: str, planets_folder: Path) -> None:
    """Would catch a traceback for a mistyped host or port."""
    with pytest.raises(ServingError, match=message):
        serve(planets_folder, host=host, port=port, load_encoder=must_not_load)


def test_a_folder_that_is_no_index_is_told_before_the_model_is_loaded(tmp_path: Path) -> None:
    """Would catch a mistyped --index found out only after the model."""
    with pytest.raises(IndexFolderError, match="not an index folder"):
        serve(tmp_path, port=0, load_encoder=must_not_load)


def test_an_encoder_that_does_not_fit_ends_the_server(planets_folder: Path) -> None:
    """Would catch a server that answers 503 for ever, because its load failed out of sight."""
    reports: list[str] = []
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        with pytest.raises(RetrieverServerError, match="dimension was 256 and is 64"):
            serve(
                planets_folder,
                port=0,
                load_encoder=lambda name: BagOfWordsEncoder(dimension=64),
                report=reports.append,
            )
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), handlers, strict=True):
            signal.signal(number, handler)
    assert len(reports) == 1 and "ready" not in reports[0]


@pytest.mark.parametrize(("name", "num_hits"), [("bm25", 4), ("hybrid", 6), ("random", 6), ("empty", 0)])
def test_each_retriever_is_served_by_its_name(name: str, num_hits: int, hybrid_folder: Path) -> None:
    """Would catch a name that does not reach the index, or another wire for another retriever."""
    with running(hybrid_folder, name) as process:
        assert f"while the {name} retriever loads" in line_with("503", process)
        url = line_with("ready", process).split()[1]
        body = {"queries": ["no moon"], "topk": 6, "return_scores": True}
        (hits,) = httpx.post(url, json=body, timeout=30).json()["result"]
    assert len(hits) == num_hits
    assert all(hit["document"].keys() == {"id", "title", "text", "contents", "url"} for hit in hits)


@pytest.mark.parametrize("name", ["bm25", "hybrid"])
def test_a_part_that_the_folder_lacks_is_told_before_the_model_is_loaded(name: str, planets_folder: Path) -> None:
    """Would catch a server that finds out at its first query, or falls back to another retriever."""
    with pytest.raises(IndexFolderError, match="has no bm25 part, only dense; build it again, or choose another"):
        serve(planets_folder, ServiceSettings(retriever=name), port=0, load_encoder=must_not_load)  # type: ignore[arg-type]


def test_a_reload_opens_the_same_retriever_again(hybrid_folder: Path) -> None:
    """Would catch a reload that falls back to the default retriever: an ablation then ends unseen."""
    with running(hybrid_folder, "empty") as process:
        url = line_with("ready", process).split()[1]
        assert httpx.post(url.replace("/retrieve", "/admin/reload"), timeout=30).status_code == 200
        assert httpx.post(url, json={"query": "Mars"}).json() == {"result": [[]]}
