"""The service from its command: what it says, how it starts, reloads and ends."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import httpx
import numpy as np
import orjson
import pytest
from fastapi import FastAPI
from numpy.typing import NDArray

from retriever_server.app import service_of
from retriever_server.encoders import Encoder
from retriever_server.errors import IndexFolderError, RetrieverServerError, ServingError
from retriever_server.index import build_index
from retriever_server.limits import Limits
from retriever_server.opening import LoadEncoder
from retriever_server.process import IndexOpener, kept_signals, make_app, server_config
from retriever_server.schema import Passage, RetrieverName
from retriever_server.service import Opened, Service
from retriever_server.serving import serve
from retriever_server.settings import Batching, ServiceSettings
from tests.retriever_server.bag_of_words import BagOfWordsEncoder, load_encoder
from tests.retriever_server.conftest import EchoRetriever, write_corpus
from tests.retriever_server.server_processes import index_files_of, line_with, running


class Reports:
    """The lines of a service, as they come."""

    def __init__(self) -> None:
        self._lines: Queue[str] = Queue()
        self.add = self._lines.put

    def line_with(self, word: str) -> str:
        """The next one that holds the word."""
        while word not in (line := self._lines.get(timeout=60)):
            pass
        return line


def served_here(
    folder: Path,
    ask: Callable[[str, Reports], None],
    settings: ServiceSettings | None = None,
    load_encoder: LoadEncoder = load_encoder,
) -> Reports:
    """The last lines of a service on this thread that another one asks, by its url; SIGTERM ends it."""
    reports = Reports()

    def client() -> None:
        url = reports.line_with("ready").split()[1]
        try:
            ask(url, reports)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with kept_signals(), ThreadPoolExecutor(1) as thread:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        asking = thread.submit(client)
        serve(folder, settings, port=0, load_encoder=load_encoder, report=reports.add)
    asking.result()
    return reports


def test_it_says_when_it_is_ready_answers_and_ends_cleanly(planets_folder: Path) -> None:
    """Would catch a server that says nothing of itself, or waits at its end for connections that are idle."""

    def ask(url: str, reports: Reports) -> None:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/retrieve", url)
        client = httpx.Client()
        assert client.post(url, json={"query": "Mars", "topk": 1}).json()["result"][0][0]["id"] == "mars"

    assert served_here(planets_folder, ask).line_with("stopped")


class GatedEncoder(BagOfWordsEncoder):
    """Encodes "Mars" once `gate` is open; `texts` keeps all that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.gate = threading.Event(), threading.Event()
        self.texts: list[str] = []

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        self.texts += texts
        if "Mars" in texts:
            self.is_asked.set()
            assert self.gate.wait(20)
        return super().encode_queries(texts)


def test_requests_under_way_are_answered_before_it_stops(planets_folder: Path) -> None:
    """Would catch a SIGTERM that resets the connections of a rollout in the middle of a search."""
    encoder = GatedEncoder()

    def ask(url: str, reports: Reports) -> None:
        with ThreadPoolExecutor(1) as thread:
            answer = thread.submit(httpx.post, url, json={"query": "Mars"}, timeout=20)
            assert encoder.is_asked.wait(20)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
            encoder.gate.set()
            assert answer.result().json()["result"][0][0]["id"] == "mars"
        with pytest.raises(httpx.ConnectError):
            httpx.post(url, json={"query": "Venus"})

    served_here(planets_folder, ask, load_encoder=lambda name: encoder)


def pending_queries(url: str, expected: int) -> None:
    """Wait until so many queries wait; the service answers meanwhile."""
    deadline = time.monotonic() + 20
    while httpx.get(url.replace("/retrieve", "/health"), timeout=20).json()["pending_queries"] != expected:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_queries_of_a_client_that_closed_its_connection_are_not_searched(planets_folder: Path) -> None:
    """Would catch a server that learns of a closed connection only when it answers, after the work was done."""
    encoder = GatedEncoder()

    def ask(url: str, reports: Reports) -> None:
        with ThreadPoolExecutor(1) as thread:
            answer = thread.submit(httpx.post, url, json={"query": "Mars"}, timeout=20)
            assert encoder.is_asked.wait(20)
            body = b'{"queries": ["Venus", "Pluto"]}'
            headers = (b"Host: here", b"Content-Type: application/json", b"Content-Length: %d" % len(body))
            with socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0)) as gone:
                gone.sendall(b"\r\n".join((b"POST /retrieve HTTP/1.1", *headers, b"", body)))
                pending_queries(url, 2)
            pending_queries(url, 0)
            encoder.gate.set()
            assert answer.result().status_code == 200
        assert httpx.post(url, json={"query": "Earth"}, timeout=20).status_code == 200

    served_here(planets_folder, ask, load_encoder=lambda name: encoder)
    assert encoder.texts[-2:] == ["Mars", "Earth"] and "Venus" not in encoder.texts


def test_an_answer_does_not_wait_for_an_acknowledgement(planets_folder: Path) -> None:
    """Would catch the body of an answer that is held back for 40 ms, until the client has acknowledged its head."""
    seconds: list[float] = []

    def ask(url: str, reports: Reports) -> None:
        with httpx.Client() as client:
            for number in range(20):
                start = time.perf_counter()
                client.post(url, json={"query": f"Mars {number}"})
                seconds.append(time.perf_counter() - start)

    served_here(planets_folder, ask)
    assert sorted(seconds)[10] < 0.03


def test_sighup_serves_the_folder_as_it_is_now_or_says_why_not(planets_folder: Path, tmp_path: Path) -> None:
    """Would catch a SIGHUP that kills the server, is not told of, or holds the old index's disk space."""
    folder = shutil.copytree(planets_folder, tmp_path / "index")

    def ask(url: str, reports: Reports) -> None:
        with httpx.Client() as client:

            def found(query: str) -> str:
                return str(client.post(url, json={"query": query, "topk": 1}).json()["result"][0][0]["id"])

            assert found("moon Mars") == "mars"
            moons = [Passage("phobos", "Phobos", "Phobos is a moon of Mars.")]
            build_index(write_corpus(tmp_path / "corpus.jsonl", moons), folder, BagOfWordsEncoder())
            os.kill(os.getpid(), signal.SIGHUP)
            assert reports.line_with("reloaded") == "reloaded: 1 passages"
            mapped = [line for line in index_files_of(os.getpid()).splitlines() if str(tmp_path) in line]
            assert mapped and not any("(deleted)" in line for line in mapped)
            assert found("moon Mars") == "phobos"
            (folder / "manifest.json").unlink()
            os.kill(os.getpid(), signal.SIGHUP)
            assert "the old one serves on" in reports.line_with("not reloaded")
            assert found("Mars moon") == "phobos"

    served_here(folder, ask)


def test_a_body_without_end_gets_its_413_over_a_real_socket(planets_folder: Path) -> None:
    """Would catch a refusal that the client never reads, because its connection is reset while it sends."""
    chunk = b" " * 2**20

    def ask(url: str, reports: Reports) -> None:
        headers = {"Content-Type": "application/json"}
        with httpx.Client(timeout=20) as client:
            assert client.post(url, content=(chunk for _ in range(12)), headers=headers).status_code == 413
            assert client.post(url, content=chunk * 12, headers=headers).status_code == 413
            assert client.post(url, json={"query": "Mars"}).status_code == 200

    served_here(planets_folder, ask, ServiceSettings(limits=Limits(max_body_bytes=2**20)))


@pytest.mark.slow
def test_the_process_logs_to_stderr_and_ends_with_status_0(planets_folder: Path) -> None:
    """Would catch a server that dies by its signal, an option that does not reach the app, or the web server's log."""
    with running(planets_folder, "--log-json") as process, httpx.Client() as client:
        url = line_with("ready", process).split()[1]
        client.post(url, json={"query": "Mars"}, headers={"X-Request-ID": "seven"})
        line = orjson.loads(line_with("seven", process))
        assert (line["id"], line["status"], line["client"]) == ("seven", 200, "127.0.0.1")
        process.send_signal(signal.SIGTERM)
        assert line_with("stopped", process) == "stopped\n"
        assert process.wait(10) == 0


@pytest.mark.slow
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


@pytest.mark.slow
def test_it_stops_while_a_reload_is_stuck(planets_folder: Path) -> None:
    """Would catch a SIGTERM that waits for a download, until the supervisor kills the requests under way too."""
    with running(planets_folder, "--loads-once") as process, httpx.Client() as client:
        url = line_with("ready", process).split()[1]
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert client.post(url, json={"query": "Mars"}).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_idle_connections_outlive_a_turn_of_a_rollout(planets_app: FastAPI) -> None:
    """Would catch the server's own default of 5 s: pooled clients then burn a retry on a reset connection."""
    assert server_config(planets_app).timeout_keep_alive >= 75


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
    with kept_signals(), pytest.raises(RetrieverServerError, match="dimension was 256 and is 64"):
        serve(planets_folder, port=0, load_encoder=lambda name: BagOfWordsEncoder(dimension=64), report=reports.append)
    assert len(reports) == 1 and "ready" not in reports[0]


@pytest.mark.parametrize(("name", "num_hits"), [("bm25", 4), ("hybrid", 6), ("random", 6), ("empty", 0)])
def test_each_retriever_is_served_by_its_name_and_reloaded_as_itself(
    name: RetrieverName, num_hits: int, hybrid_folder: Path
) -> None:
    """Would catch a name that does not reach the index, another wire for another retriever, or a reload that falls
    back to the default retriever: an ablation then ends unseen."""
    settings = ServiceSettings(retriever=name, cache_entries=0)
    open_index = IndexOpener(hybrid_folder, settings, load_encoder)
    app = make_app(settings, open_index)

    async def ask() -> list[httpx.Response]:
        await service_of(app).load(open_index)
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 50000))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            body = {"queries": ["no moon"], "topk": 6, "return_scores": True}
            found = [await http.post("/retrieve", json=body)]
            assert (await http.post("/admin/reload")).status_code == 200
            return [*found, await http.post("/retrieve", json=body)]

    first, second = asyncio.run(ask())
    assert first.content == second.content
    (hits,) = first.json()["result"]
    assert len(hits) == num_hits
    assert all(hit["document"].keys() == {"id", "title", "text", "contents", "url"} for hit in hits)


@pytest.mark.parametrize("name", ["bm25", "hybrid"])
def test_a_part_that_the_folder_lacks_is_told_before_the_model_is_loaded(
    name: RetrieverName, planets_folder: Path
) -> None:
    """Would catch a server that finds out at its first query, or falls back to another retriever."""
    with (
        kept_signals(),
        pytest.raises(IndexFolderError, match="has no bm25 part, only dense; build it again, or choose another"),
    ):
        serve(planets_folder, ServiceSettings(retriever=name), port=0, load_encoder=must_not_load)


def test_thread_that_opened_an_index_is_gone_when_it_is_served() -> None:
    """It kept its helpers of OpenMP, of which only as many as there are cores wait busily: all encoding after that ran
    as if on one core, at half the speed."""
    opened_by: list[threading.Thread] = []

    def open_index() -> Opened:
        opened_by.append(threading.current_thread())
        return EchoRetriever(), None

    async def load() -> None:
        service = Service(cache_entries=0, batching=Batching())
        await service.load(open_index)
        for _ in range(100):
            if not opened_by[0].is_alive():
                return
            await asyncio.sleep(0.01)

    asyncio.run(load())
    assert [thread.is_alive() for thread in opened_by] == [False]
    assert opened_by[0] is not threading.main_thread()
