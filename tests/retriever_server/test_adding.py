"""`index add`: new passages behind the old, as if all had been built at once, without encoding the old again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from retriever_server.adding import add_to_index
from retriever_server.app import create_app
from retriever_server.corpus import CorpusReport
from retriever_server.errors import CorpusError, EncoderError, IndexFolderError
from retriever_server.index import build_index
from retriever_server.opening import check_index, open_retriever
from retriever_server.schema import Passage
from retriever_server.service import Opened
from tests.retriever_server.bag_of_words import PLANETS, BagOfWordsEncoder
from tests.retriever_server.conftest import write_corpus

MOONS = [Passage("phobos", "Phobos", "Phobos is a moon of Mars."), Passage("io", "Io", "Io is a moon of Jupiter.")]


class RecordingEncoder(BagOfWordsEncoder):
    """Keeps the passages that it encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        self.texts += texts
        return super().encode_passages(texts)


def load_encoder(name: str) -> BagOfWordsEncoder:
    return BagOfWordsEncoder()


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("kind", "with_bm25"), [("flat", True), ("fp16", False)])
def test_an_index_that_grew_is_the_index_of_all_its_passages(kind: str, with_bm25: bool, tmp_path: Path) -> None:
    """Would catch new vectors beside the passages of others, stale BM25 weights, or old canaries."""
    out, encoder = tmp_path / "index", RecordingEncoder()
    build_index(write_corpus(tmp_path / "a.jsonl", PLANETS), out, BagOfWordsEncoder(), kind=kind, with_bm25=with_bm25)
    added = add_to_index(out, write_corpus(tmp_path / "b.jsonl", MOONS), lambda name: encoder)
    assert encoder.texts == [passage.contents for passage in MOONS]
    both = write_corpus(tmp_path / "ab.jsonl", [*PLANETS, *MOONS])
    at_once = build_index(both, tmp_path / "both", BagOfWordsEncoder(), kind=kind, with_bm25=with_bm25)
    assert (added.num_passages, added.corpus_sha256) == (8, at_once.corpus_sha256)
    ours, theirs = files_of(out), files_of(tmp_path / "both")
    assert {name: ours[name] == theirs[name] for name in theirs} == dict.fromkeys(theirs, True)
    assert check_index(out) == added
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "ab.jsonl", "b.jsonl", "both", "index"]


def test_a_service_finds_what_was_added_once_it_reloads(planets_folder: Path, tmp_path: Path) -> None:
    """Would catch an addition that disturbs the index in service, or that a reload does not take up."""
    folder = shutil.copytree(planets_folder, tmp_path / "index")

    def open_again() -> Opened:
        return open_retriever(folder, load_encoder=load_encoder)

    app = create_app(open_again()[0], open_again=open_again)

    async def questions() -> list[list[str]]:
        found = []
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 50000))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:

            async def ask() -> None:
                answer = await http.post("/retrieve", json={"queries": ["Phobos moon Io Jupiter"], "topk": 2})
                found.append([hit["id"] for hit in answer.json()["result"][0]])

            await ask()
            add_to_index(folder, write_corpus(tmp_path / "b.jsonl", MOONS), load_encoder)
            await ask()
            assert (await http.post("/admin/reload")).status_code == 200
            await ask()
        return found

    before, meanwhile, after = asyncio.run(questions())
    assert before == meanwhile != after
    assert sorted(after) == ["io", "phobos"]


def test_an_id_that_the_index_has_is_refused_or_skipped(planets_folder: Path, tmp_path: Path) -> None:
    """Would catch two passages of one id, or an index that is lost because of a bad row."""
    folder = shutil.copytree(planets_folder, tmp_path / "index")
    before = files_of(folder)
    corpus = write_corpus(tmp_path / "b.jsonl", [MOONS[0], PLANETS[3], MOONS[0], MOONS[1]])
    with pytest.raises(CorpusError, match="line 2: id 'mars' is in the index already"):
        add_to_index(folder, corpus, load_encoder)
    assert files_of(folder) == before
    report = CorpusReport(skip_bad=True)
    manifest = add_to_index(folder, corpus, load_encoder, report=report)
    assert (manifest.num_passages, report.num_skipped, manifest.num_skipped) == (8, {"duplicate": 2}, {"duplicate": 2})
    with pytest.raises(IndexFolderError, match="no new passages, nothing to add"):
        add_to_index(folder, corpus, load_encoder, report=CorpusReport(skip_bad=True))


def test_another_encoder_is_refused(planets_folder: Path, tmp_path: Path) -> None:
    """Would catch an index that is half of one model's vectors and half of another's."""
    folder = shutil.copytree(planets_folder, tmp_path / "index")
    corpus = write_corpus(tmp_path / "b.jsonl", MOONS)
    with pytest.raises(EncoderError, match="weights have changed"):
        add_to_index(folder, corpus, lambda name: BagOfWordsEncoder(flipped=True))
    with pytest.raises(EncoderError, match="dimension was 256 and is 64"):
        add_to_index(folder, corpus, lambda name: BagOfWordsEncoder(dimension=64))
    with pytest.raises(IndexFolderError, match="not an index folder"):
        add_to_index(tmp_path / "nowhere", corpus, load_encoder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.jsonl", "index"]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_an_index_that_a_killed_build_took_from_its_place_is_put_back(
    is_replaced: bool, planets_folder: Path, tmp_path: Path
) -> None:
    """Would catch an index that is lost, or left behind for ever, where folders cannot be exchanged at once (NFS)."""
    folder = shutil.copytree(planets_folder, tmp_path / "index")
    if is_replaced:
        shutil.copytree(planets_folder, tmp_path / ".index.building-old")
    else:
        folder.rename(tmp_path / ".index.building-old")
    add_to_index(folder, write_corpus(tmp_path / "b.jsonl", MOONS), load_encoder)
    assert check_index(folder).num_passages == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.jsonl", "index"]


def test_bm25_alone_needs_no_encoder(tmp_path: Path) -> None:
    """Would catch a model that is loaded, or asked for, where nothing is encoded."""
    build_index(write_corpus(tmp_path / "a.jsonl", PLANETS), tmp_path / "index", None, with_bm25=True)

    def never(name: str) -> BagOfWordsEncoder:
        raise AssertionError(name)

    add_to_index(tmp_path / "index", write_corpus(tmp_path / "b.jsonl", MOONS), never)
    retriever, _ = open_retriever(tmp_path / "index", "bm25")
    assert [hit.passage.id for hit in retriever.search(["Io"], top_k=1)[0]] == ["io"]
