"""Builds for which the disk has no room: told before anything is encoded, and nothing that was there is lost."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retriever_server.adding import add_to_index
from retriever_server.errors import IndexFolderError
from retriever_server.importing import import_index
from retriever_server.index import build_index
from retriever_server.opening import check_index
from retriever_server.schema import Passage
from search_rl.cli import main
from tests.retriever_server.bag_of_words import PLANETS, BagOfWordsEncoder
from tests.retriever_server.conftest import write_corpus
from tests.retriever_server.test_resuming import SHARD, CountingEncoder, some_corpus

# Of a file that occupies nothing; no disk is as large.
VAST_BYTES = 8 * 2**40
# What a check wants to stay free beside what is written.
SPARE_BYTES = 64 * 2**20
VAST_DIMENSION = 2**30
TOO_LARGE = re.compile(r"need ([\d.]+) GB, ([\d.]+) GB are free; make room or give another --out$")


def said(message: str) -> tuple[float, float]:
    """The GB that are needed and those that are free."""
    found = TOO_LARGE.search(message)
    assert found is not None and "\n" not in message, message
    return float(found[1]), float(found[2])


def files(folder: Path) -> dict[str, bytes]:
    """All of a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_vectors_without_room_are_told_before_the_first_is_made(planets_folder: Path, tmp_path: Path) -> None:
    """Would catch hours of encoding for an index that the disk cannot take, or an old index that goes first."""
    corpus, out = some_corpus(tmp_path / "corpus.jsonl", 2 * SHARD), tmp_path / "index"
    build_index(write_corpus(tmp_path / "planets.jsonl", PLANETS), out, BagOfWordsEncoder())
    before, encoder = files(out), CountingEncoder(dimension=VAST_DIMENSION)
    with pytest.raises(IndexFolderError) as caught:
        build_index(corpus, out, encoder)
    needed_gb, free_gb = said(str(caught.value))
    assert needed_gb == pytest.approx((2 * 4 * 2 * SHARD * VAST_DIMENSION + SPARE_BYTES) / 1e9, abs=0.01)
    assert 0 < free_gb < needed_gb
    assert encoder.count == 0
    assert files(out) == before and not (tmp_path / ".index.building").exists()


def test_passages_without_room_are_told_and_encoded_shards_stay(tmp_path: Path) -> None:
    """Would catch a check that comes after the disk is full, or one that throws away what was encoded before."""
    folder, out = tmp_path / "corpus", tmp_path / "index"
    folder.mkdir()
    some_corpus(folder / "a.jsonl", 2 * SHARD)
    with pytest.raises(RuntimeError, match="out of memory"):
        build_index(folder, out, CountingEncoder(most=SHARD))
    with (folder / "b.jsonl").open("wb") as file:
        file.truncate(VAST_BYTES)
    encoder = CountingEncoder()
    with pytest.raises(IndexFolderError) as caught:
        build_index(folder, out, encoder)
    assert said(str(caught.value))[0] == pytest.approx((VAST_BYTES + SPARE_BYTES) / 1e9, abs=0.1)
    assert encoder.count == 0
    (folder / "b.jsonl").unlink()
    build_index(folder, out, encoder)
    assert encoder.count == SHARD


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    """Would catch a traceback, or a message without the figures that say how much to make free."""
    with (tmp_path / "corpus.jsonl").open("wb") as file:
        file.truncate(VAST_BYTES)
    arguments = ["--corpus", str(tmp_path / "corpus.jsonl"), "--out", str(tmp_path / "index"), "--retriever", "bm25"]
    result = CliRunner().invoke(main.app, ["index", "build", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    said(result.stderr.strip())
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


@pytest.mark.parametrize(("with_bm25", "times"), [(False, 1), (True, 3)])
def test_an_import_without_room_copies_nothing(
    with_bm25: bool, times: int, planets_folder: Path, tmp_path: Path
) -> None:
    """Would catch an hour of copying before the bad news, or BM25 weights that are thought of after it."""
    with (tmp_path / "corpus.jsonl").open("wb") as file:
        file.truncate(VAST_BYTES)
    vectors, out = planets_folder / "index.faiss", tmp_path / "index"
    with pytest.raises(IndexFolderError) as caught:
        import_index([vectors], tmp_path / "corpus.jsonl", out, BagOfWordsEncoder(), with_bm25=with_bm25)
    assert said(str(caught.value))[0] == pytest.approx((times * VAST_BYTES + SPARE_BYTES) / 1e9, abs=0.1)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 MiB; only root may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "none", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    # Lazily: what failed may still hold a mapped file.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def build_hybrid(disk: Path, corpus: Path, encoder: CountingEncoder) -> None:
    build_index(corpus, disk / "index", encoder, with_bm25=True)


def add_to_hybrid(disk: Path, corpus: Path, encoder: CountingEncoder) -> None:
    first = write_corpus(disk.parent / "first.jsonl", PLANETS)
    build_index(first, disk / "index", BagOfWordsEncoder(dimension=8), with_bm25=True)
    add_to_index(disk / "index", corpus, lambda name: encoder)


@pytest.mark.parametrize("make", [build_hybrid, add_to_hybrid])
def test_bm25_weights_without_room_are_told_before_vectors_are_made(
    make: Callable[[Path, Path, CountingEncoder], None], small_disk: Path
) -> None:
    """Room for passages and vectors, none for the BM25 weights after them: it was told when all was encoded."""
    long_text = "word " * 3_000_000
    corpus = write_corpus(small_disk.parent / "corpus.jsonl", [Passage("long", "", long_text)])
    encoder = CountingEncoder(dimension=8)
    with pytest.raises(IndexFolderError) as caught:
        make(small_disk, corpus, encoder)
    needed_gb, free_gb = said(str(caught.value))
    assert needed_gb == pytest.approx((2 * len(long_text) + SPARE_BYTES) / 1e9, abs=0.01)
    assert free_gb == pytest.approx((100 * 2**20 - len(long_text)) / 1e9, abs=0.01)
    assert encoder.count == 0
    if make is add_to_hybrid:
        assert check_index(small_disk / "index").num_passages == len(PLANETS)
