"""The soak: what its oracle lets pass and what not, and what counts as a fault of the service."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import httpx
import numpy as np
import orjson
import pytest
from fastapi import FastAPI, Response

from retriever_server.app import create_app
from retriever_server.bench.oracle import Oracle, write_oracle
from retriever_server.bench.process import Usage
from retriever_server.bench.queries import EncodedQueries, StoredVectors, encode_all
from retriever_server.bench.soak import Soak
from retriever_server.bench.soak_client import SoakResult, SoakSpec, run_soak
from retriever_server.bench.synthetic import SyntheticEncoder, synthetic_queries, write_synthetic_index
from retriever_server.dense import DenseIndex
from retriever_server.errors import BenchError
from retriever_server.opening import open_retriever
from retriever_server.retrievers import DenseRetriever
from retriever_server.store import PassageStore
from tests.retriever_server.conftest import post

QUERIES = encode_all(synthetic_queries(20), SyntheticEncoder(16))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic index of 300 passages."""
    out = tmp_path_factory.mktemp("soak") / "index"
    write_synthetic_index(out, num_passages=300, dimension=16)
    return out


@pytest.fixture(scope="module")
def oracle_file(folder: Path) -> Path:
    """The right answers."""
    path = folder.with_name("oracle.npz")
    write_oracle(folder, QUERIES, path)
    return path


def app_over(folder: Path) -> FastAPI:
    """The service over an index folder."""
    return create_app(open_retriever(folder, load_encoder=lambda name: SyntheticEncoder(16))[0])


def soaked(app: FastAPI, folder: Path, oracle_file: Path, *, seconds: float = 0.4) -> SoakResult:
    """What four clients see of an app."""
    spec = SoakSpec("http://test", folder, oracle_file, num_clients=4, seconds=seconds)
    return asyncio.run(run_soak(spec, httpx.ASGITransport(app)))


def test_the_service_gives_no_wrong_answer(folder: Path, oracle_file: Path) -> None:
    """Would catch a service that is wrong for some k, size or dialect, or an oracle that is."""
    result = soaked(app_over(folder), folder, oracle_file)
    assert (result.num_wrong, result.statuses, result.num_lost_connections, result.examples) == (0, {}, 0, [])
    assert result.num_queries >= result.num_requests > 10


def test_a_search_that_is_wrong_for_one_vector_in_a_hundred_is_found(folder: Path, oracle_file: Path) -> None:
    """Would catch a soak that passes whatever it gets."""
    vectors_ND = faiss.read_index(str(folder / "index.faiss")).reconstruct_n(0, 300)
    vectors_ND[::100] *= -1
    damaged = faiss.IndexFlatIP(16)
    damaged.add(vectors_ND)
    retriever = DenseRetriever(DenseIndex(damaged), SyntheticEncoder(16), PassageStore(folder))
    result = soaked(create_app(retriever), folder, oracle_file)
    assert 0 < result.num_wrong < result.num_queries
    assert len(result.examples) == 5


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda hits: hits.pop(), "2 hits, not 3"),
        (lambda hits: hits.append(hits[0]), "4 hits, not 3"),
        (lambda hits: hits.__setitem__(1, hits[0]), "a passage twice"),
        (lambda hits: hits.reverse(), "is the best but"),
        (lambda hits: hits[0]["document"].update(id="no such"), "not among the best"),
        (lambda hits: hits[2].update(score=0.5), "has the score 0.5"),
        (lambda hits: hits[1]["document"].update(text="another"), "as it is stored"),
        (lambda hits: hits[1]["document"].pop("url"), "as it is stored"),
    ],
)
def test_each_fault_has_its_name(
    folder: Path, oracle_file: Path, spoil: Callable[[list[Any]], object], fault: str
) -> None:
    """Would catch a check that looks at ids alone, or at the first hit alone."""
    oracle = Oracle.load(oracle_file, folder)
    (answer,) = post(app_over(folder), {"queries": [QUERIES.texts[7]], "topk": 3, "return_scores": True})
    hits = answer.json()["result"][0]
    assert oracle.fault(7, 3, hits, with_scores=True) is None
    spoiled = copy.deepcopy(hits)
    spoil(spoiled)
    assert fault in (oracle.fault(7, 3, spoiled, with_scores=True) or "")


def test_a_k_beyond_the_corpus_wants_all_of_it(tmp_path: Path) -> None:
    """Would catch an oracle that calls a short corpus a short answer."""
    write_synthetic_index(tmp_path / "index", num_passages=7, dimension=16)
    write_oracle(tmp_path / "index", QUERIES, tmp_path / "oracle.npz")
    result = soaked(app_over(tmp_path / "index"), tmp_path / "index", tmp_path / "oracle.npz", seconds=0.2)
    assert (result.num_wrong, result.examples) == (0, [])


def test_an_approximate_index_has_no_right_answers(tmp_path: Path) -> None:
    """Would catch a soak that counts an approximation as wrong, or compares an index with itself."""
    write_synthetic_index(tmp_path / "index", num_passages=50, dimension=16, kind="hnsw")
    with pytest.raises(BenchError, match="approximate"):
        write_oracle(tmp_path / "index", QUERIES, tmp_path / "oracle.npz")


def test_only_a_503_that_says_when_to_come_again_is_deliberate(folder: Path, oracle_file: Path) -> None:
    """Would catch a crash behind a proxy that is counted as overload."""
    answers = iter([Response(status_code=503, headers={"Retry-After": "0"}), Response("no", 503)] * 10**6)
    app = FastAPI()

    @app.post("/retrieve")
    async def retrieve() -> Response:
        return next(answers)

    result = soaked(app, folder, oracle_file, seconds=0.1)
    assert result.num_requests == 0
    assert abs(result.num_deliberate_503 - result.statuses["503"]) <= 4


def usages(*private_bytes: int) -> tuple[Usage, ...]:
    """Samples with 1,000 bytes from files."""
    return tuple(Usage(0.0, 1000 + private, private) for private in private_bytes)


def test_what_is_a_fault() -> None:
    """Would catch a soak that ends well after wrong answers, growth or silence."""
    flat, growing = usages(*[100] * 20), usages(*range(1000, 3000, 100))
    fine = SoakResult(num_requests=1, num_queries=1, num_deliberate_503=3)
    assert Soak(1.0, 4, fine, flat).faults == []
    assert Soak(1.0, 4, SoakResult(), flat).faults == ["not one query was answered"]
    bad = SoakResult(num_requests=9, num_queries=9, num_wrong=1, num_lost_connections=2, statuses={"500": 3})
    assert Soak(1.0, 4, bad, flat).faults == ["1 wrong answers", "2 lost connections", "3 answers with status 500"]
    # Medians of 1,400 … 1,700 and 2,600 … 2,900.
    grown = Soak(1.0, 4, fine, growing)
    assert grown.private_growth == pytest.approx(2750 / 1550 - 1)
    assert grown.resident_growth == pytest.approx(3750 / 2550 - 1)
    assert grown.faults == ["memory grew by 47.1%"]


def test_vectors_are_looked_up_as_they_were_stored(tmp_path: Path) -> None:
    """Would catch texts and vectors that get out of step in the file."""
    QUERIES.save(tmp_path / "queries.npz")
    loaded = EncodedQueries.load(tmp_path / "queries.npz")
    stored = StoredVectors(SyntheticEncoder(16).spec, loaded)
    some = [QUERIES.texts[5], QUERIES.texts[0], QUERIES.texts[5]]
    assert np.array_equal(stored.encode_queries(some), QUERIES.vectors_ND[[5, 0, 5]])
    assert orjson.loads(orjson.dumps(loaded.texts)) == list(QUERIES.texts)
