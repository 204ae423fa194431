"""A small index, built once, and ways to ask it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from fastapi import FastAPI

from retriever_server.app import create_app
from retriever_server.digests import record_file
from retriever_server.index import build_index
from retriever_server.manifest import MANIFEST_FILE
from retriever_server.opening import open_retriever
from retriever_server.retrievers import Retriever
from retriever_server.schema import Passage, ScoredPassage
from tests.retriever_server.bag_of_words import PLANETS, BagOfWordsEncoder


class EchoRetriever:
    """Finds `top_k` passages named after the query once `gate` is open; `batches` keeps what came in."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.gate = threading.Event()
        self.batches: list[list[str]] = []
        self.threads: set[int] = set()
        if is_open:
            self.gate.set()

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """See Retriever."""
        self.gate.wait(10)
        self.threads.add(threading.get_ident())
        self.batches.append(list(queries))
        if "explode" in queries:
            raise RuntimeError("the encoder blew up")
        return [[ScoredPassage(Passage(f"{q}-{k}", "", q), 1 / (k + 1)) for k in range(top_k)] for q in queries]


def write_corpus(path: Path, rows: Iterable[Passage | dict[str, Any]]) -> Path:
    """The path, after one JSON line a row."""
    path.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
    return path


def vouch_for(folder: Path) -> None:
    """Let the manifest of an index folder describe its files as they are now."""
    manifest = orjson.loads((folder / MANIFEST_FILE).read_bytes())
    paths = {name: folder / name for name in manifest["files"]}
    manifest["files"].update({name: record_file(path) for name, path in paths.items() if path.exists()})
    (folder / MANIFEST_FILE).write_bytes(orjson.dumps(manifest))


def post(app: FastAPI, *bodies: Any) -> list[httpx.Response]:
    """The answers to bodies (JSON values, or raw bytes) that are posted at once."""

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            headers = {"Content-Type": "application/json"}
            sent = [body if isinstance(body, bytes) else orjson.dumps(body) for body in bodies]
            posts = [client.post("/retrieve", content=content, headers=headers) for content in sent]
            return list(await asyncio.gather(*posts))

    return asyncio.run(ask())


def get(app: FastAPI, *paths: str) -> list[httpx.Response]:
    """The answers to GET of each path in turn."""

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return [await client.get(path) for path in paths]

    return asyncio.run(ask())


@pytest.fixture(scope="session")
def planets_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index folder of six passages; copy it before you change it."""
    base = tmp_path_factory.mktemp("planets")
    build_index(write_corpus(base / "corpus.jsonl", PLANETS), base / "index", BagOfWordsEncoder())
    return base / "index"


@pytest.fixture(scope="session")
def hybrid_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index folder of six passages, dense and BM25; copy it before you change it."""
    base = tmp_path_factory.mktemp("hybrid")
    build_index(write_corpus(base / "corpus.jsonl", PLANETS), base / "index", BagOfWordsEncoder(), with_bm25=True)
    return base / "index"


@pytest.fixture(scope="session")
def planets(planets_folder: Path) -> Retriever:
    """A retriever over the six passages."""
    return open_retriever(planets_folder, load_encoder=lambda name: BagOfWordsEncoder())[0]


@pytest.fixture
def planets_app(planets: Retriever) -> FastAPI:
    """The service over the six passages."""
    return create_app(planets)
