"""The throughput bench: what its figures are of, and both servers as processes."""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import faiss
import httpx
import orjson
import pytest
import uvicorn
from fastapi import FastAPI, Response
from typer.testing import CliRunner

from retriever_server.app import create_app
from retriever_server.bench.bare import forget_files
from retriever_server.bench.load import Load, LoadResult, LoadSpec, run_load
from retriever_server.bench.queries import encode_all
from retriever_server.bench.reference import reference_app
from retriever_server.bench.synthetic import SyntheticEncoder, synthetic_queries, write_synthetic_index
from retriever_server.bench.throughput import percentile
from retriever_server.errors import BenchError
from retriever_server.opening import open_retriever
from retriever_server.process import kept_signals
from retriever_server.store import PassageStore
from search_rl.cli.bench import app
from tests.retriever_server.conftest import post


def counting_app(seen: list[int], *, failing_every: int = 0, seconds: float = 0.005) -> FastAPI:
    """Answers after some milliseconds; the sizes of the bodies go to `seen`, each n-th request fails."""
    counting = FastAPI()

    @counting.post("/retrieve")
    async def retrieve(body: dict[str, list[str] | int | bool]) -> Response:
        queries = body["queries"]
        assert isinstance(queries, list)
        seen.append(len(queries))
        is_failing = failing_every > 0 and len(seen) % failing_every == 0
        await asyncio.sleep(seconds)
        return Response(status_code=500 if is_failing else 200)

    return counting


def loaded(app: FastAPI, load: Load, *, seconds: float) -> LoadResult:
    """What clients see of an app that is served for them."""

    async def ask() -> LoadResult:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            result = await run_load(LoadSpec(url, load, ("a", "b", "c"), top_k=3, seconds=seconds))
            server.should_exit = True
            await serving
        return result

    with kept_signals():
        return asyncio.run(ask())


def test_every_request_is_counted_once() -> None:
    """Would catch warm-up requests in the figures, failures that make a server look fast, or a lost latency."""
    seen: list[int] = []
    result = loaded(counting_app(seen, failing_every=5), Load(concurrency=3, batch=4), seconds=0.2)
    assert set(seen) == {4}
    assert len(result.latencies_seconds) + result.num_failed + result.num_warm_up_requests == len(seen)
    assert result.num_failed == pytest.approx(len(seen) / 5, abs=1.01)
    assert min(result.latencies_seconds) >= 0.005
    assert list(result.latencies_seconds) == sorted(result.latencies_seconds)
    assert 0.2 <= result.seconds < 0.5


def test_an_answer_that_is_cut_short_or_never_comes_has_failed() -> None:
    """Would catch clients that take half an answer for one, end with a traceback, or stay on a dead connection."""
    answers = itertools.cycle([b"Content-Length: 2\r\n\r\n{}", b"Content-Length: 7\r\n\r\n{}", b"\r\n", b""])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + next(answers))
        writer.close()

    async def ask() -> LoadResult:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await run_load(LoadSpec(f"http://127.0.0.1:{port}", Load(1, 1), ("a",), top_k=3, seconds=0.1))

    result = asyncio.run(ask())
    assert result.num_failed == pytest.approx(3 * len(result.latencies_seconds), abs=3) and result.num_failed > 3
    gone = asyncio.run(run_load(LoadSpec("http://127.0.0.1:9", Load(2, 1), ("a",), top_k=3, seconds=0.05)))
    assert gone.num_failed > 1 and gone.latencies_seconds == ()


def test_percentiles_are_of_values_that_occurred() -> None:
    """Would catch a p99 that is the p98, or an index past the end."""
    assert [percentile(range(1, 101), percent) for percent in (50, 95, 99, 100)] == [50, 95, 99, 100]
    assert percentile([7.0], 99) == 7.0


def test_both_servers_find_the_same(tmp_path: Path) -> None:
    """Would catch a plain server that is fast because it does less, or other passages from the same index."""
    write_synthetic_index(tmp_path / "index", num_passages=200, dimension=16)
    service = create_app(open_retriever(tmp_path / "index", load_encoder=lambda name: SyntheticEncoder(16))[0])
    store = PassageStore(tmp_path / "index")
    documents = [{"id": passage.id, "contents": passage.contents} for passage in store]
    reference = reference_app(
        faiss.read_index(str(tmp_path / "index" / "index.faiss")), documents, SyntheticEncoder(16)
    )
    body = {"queries": synthetic_queries(5), "topk": 4, "return_scores": True}
    found = [post(server, body)[0].json()["result"] for server in (service, reference)]
    ids = [[[hit["document"]["id"] for hit in hits] for hits in answers] for answers in found]
    assert ids[0] == ids[1]
    assert [[len(hits) for hits in answers] for answers in found] == [[4] * 5] * 2
    scores = [[hit["score"] for hits in answers for hit in hits] for answers in found]
    assert scores[0] == pytest.approx(scores[1], abs=2e-6)


THRESHOLDS = """
import sys, threading, faiss
untouched = faiss.cvar.distance_compute_blas_threshold
from retriever_server.bench import reference

def tell():
    sys.stdin.readline()  # By then a query was answered.
    served_with = faiss.cvar.distance_compute_blas_threshold
    import retriever_server.dense
    print(untouched, served_with, faiss.cvar.distance_compute_blas_threshold, flush=True)

threading.Thread(target=tell, daemon=True).start()
reference.main(sys.argv[1:])
"""


@contextmanager
def taken_port(port: int) -> Iterator[None]:
    """A port at which somebody listens, we or another."""
    with socket.socket() as listener:
        with suppress(OSError):
            listener.bind(("127.0.0.1", port))
            listener.listen()
        yield


def test_the_reference_searches_with_thresholds_of_faiss_beside_a_service(tmp_path: Path) -> None:
    """One import of our index would make the plain server as fast as ours. And it ended where port 8000 was taken: the
    port of a service that runs."""
    write_synthetic_index(tmp_path / "index", num_passages=200, dimension=16)
    queries = synthetic_queries(3)
    encode_all(queries, SyntheticEncoder(16)).save(tmp_path / "queries.npz")
    command = [sys.executable, "-c", THRESHOLDS, str(tmp_path / "index"), str(tmp_path / "queries.npz")]
    pipe = subprocess.PIPE
    with taken_port(8000), subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            address = process.stdout.readline().strip()
            answered = httpx.post(f"{address}/retrieve", json={"queries": queries, "topk": 4}, timeout=20).json()
            assert [len(hits) for hits in answered["result"]] == [4, 4, 4]
            process.stdin.write("\n")
            process.stdin.flush()
            untouched, served_with, ours = process.stdout.readline().split()
            assert served_with == untouched != ours == "1"
        finally:
            process.kill()


def test_a_synthetic_index_is_the_same_each_time(tmp_path: Path) -> None:
    """Would catch figures of two runs that are of different data."""
    for name in ("one", "two"):
        write_synthetic_index(tmp_path / name, num_passages=30, dimension=8)
    files = [(tmp_path / name / "index.faiss").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]
    queries = synthetic_queries(300)
    assert len(set(queries)) == 300 and queries == synthetic_queries(300)
    assert len(encode_all([*queries, *queries], SyntheticEncoder(8)).texts) == 300


@pytest.mark.parametrize("load", ["", "64", "64x", "0x1", "1x0", "1025x1", "1x4097", "1x1;2x2", "1x-1"])
def test_a_load_that_is_none_is_told(load: str) -> None:
    """Would catch a measurement of nothing, or one that the service refuses."""
    result = CliRunner().invoke(app, ["retrieval", "--load", load])
    assert result.exit_code == 2 and "clients x queries" in " ".join(result.stderr.split())


def test_a_synthetic_index_without_an_encoder_encodes_nothing(tmp_path: Path) -> None:
    """Would catch a run that says it measured an encoder and did not."""
    synthetic = tmp_path / "index"
    write_synthetic_index(synthetic, num_passages=5, dimension=8)
    result = CliRunner().invoke(app, ["retrieval", "--index", str(synthetic), "--encode"])
    assert isinstance(result.exception, BenchError) and "synthetic" in str(result.exception)


def test_a_folder_that_cannot_be_written_is_told_before_minutes_of_measuring(tmp_path: Path) -> None:
    """Would catch a run whose figures are lost at its end."""
    (tmp_path / "file").touch()
    for command in ("retrieval", "soak"):
        result = CliRunner().invoke(app, [command, "--passages", "10", "--out", str(tmp_path / "file" / "out")])
        assert isinstance(result.exception, BenchError) and "cannot be written" in str(result.exception)


@pytest.mark.slow
def test_the_whole_bench_runs(tmp_path: Path) -> None:
    """Would catch a server that does not start, figures that do not reach the files, or processes left behind."""
    arguments = ["--passages", "300", "--dimension", "16", "--load", "1x1,8x4", "--seconds", "0.3"]
    result = CliRunner().invoke(app, ["retrieval", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    found = orjson.loads((tmp_path / "retrieval.json").read_bytes())
    for name in ("service", "reference"):
        points = found[name]["points"]
        assert [(point["load"]["concurrency"], point["load"]["batch"]) for point in points] == [(1, 1), (8, 4)]
        assert all(point["num_failed"] == 0 and point["num_queries"] > 0 for point in points)
        assert all(0 < point["p50_seconds"] <= point["p95_seconds"] <= point["p99_seconds"] for point in points)
    assert found["speed_up"]["8x4"] == pytest.approx(
        found["service"]["points"][1]["queries_per_second"] / found["reference"]["points"][1]["queries_per_second"]
    )
    assert (tmp_path / "retrieval.png").read_bytes().startswith(b"\x89PNG")
    assert "service 8x4" in result.stdout and "reference 1x1" in result.stdout


@pytest.mark.slow
def test_the_whole_soak_runs(tmp_path: Path) -> None:
    """Would catch a soak that ends well without having asked, or that cannot be stopped."""
    arguments = ["--passages", "300", "--dimension", "16", "--minutes", "0.05", "--clients", "8"]
    result = CliRunner().invoke(app, ["soak", *arguments, "--out", str(tmp_path)])
    found = orjson.loads((tmp_path / "soak.json").read_bytes())
    assert found["result"]["num_wrong"] == 0 and found["result"]["num_queries"] > 0
    assert found["result"]["statuses"] == {} and len(found["samples"]) > 5
    assert "0 wrong" in result.stdout


def test_files_below_an_index_folder_are_forgotten_too(tmp_path: Path) -> None:
    """A hybrid index, whose BM25 weights lie in a folder of their own, ended the measurement."""
    (tmp_path / "bm25").mkdir()
    for path in (tmp_path / "index.faiss", tmp_path / "bm25" / "weights.npy"):
        path.write_bytes(b"vectors")
    forget_files(tmp_path)
    assert (tmp_path / "bm25" / "weights.npy").read_bytes() == b"vectors"
