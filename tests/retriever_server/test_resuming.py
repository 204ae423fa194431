"""Builds that are killed, fail or meet another: what was encoded is not encoded again, and the result is the same."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from retriever_server.errors import IndexFolderError
from retriever_server.index import build_index
from retriever_server.manifest import MANIFEST_FILE, read_manifest
from retriever_server.opening import check_index
from retriever_server.schema import Passage
from tests.retriever_server.bag_of_words import PLANETS, BagOfWordsEncoder
from tests.retriever_server.conftest import write_corpus
from tests.retriever_server.killed_builds import LoggingEncoder

FILES = ("index.faiss", "passages.jsonl", "offsets.npy")
WORDS = [f"word{number}" for number in range(400)]
SHARD = 1024
SCRIPT = Path(__file__).with_name("killed_builds.py")


def some_corpus(path: Path, num_passages: int, *, num_words: int = 8) -> Path:
    """A corpus of random words."""
    choice = random.Random(3)
    return write_corpus(
        path, [Passage(str(row), "", " ".join(choice.choices(WORDS, k=num_words))) for row in range(num_passages)]
    )


def contents(folder: Path) -> list[bytes]:
    """The files whose bytes a kill must not change."""
    return [(folder / name).read_bytes() for name in FILES]


class CountingEncoder(BagOfWordsEncoder):
    """Counts passages, and fails once it has encoded `most` of them."""

    def __init__(self, *, most: int = 10**9, flipped: bool = False, dimension: int = 256) -> None:
        super().__init__(flipped=flipped, dimension=dimension)
        self.count, self._most = 0, most

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        if self.count >= self._most:
            raise RuntimeError("out of memory")
        self.count += len(texts)
        return super().encode_passages(texts)


def test_a_build_killed_at_random_moments_ends_as_one_that_was_not(tmp_path: Path) -> None:
    """Would catch a torn shard, rows out of order, passages encoded twice, or a half-built index."""
    num_passages = 3 * SHARD + 100
    corpus, log = some_corpus(tmp_path / "corpus.jsonl", num_passages), tmp_path / "log"
    build_index(corpus, tmp_path / "whole", LoggingEncoder(tmp_path / "other-log"))
    script = [sys.executable, str(SCRIPT)]
    arguments = [str(corpus), str(tmp_path / "index"), str(log)]
    done = subprocess.run([*script, *arguments], capture_output=True, text=True, check=True, timeout=60)
    num_killed = int(done.stdout)
    assert num_killed >= 1
    assert contents(tmp_path / "index") == contents(tmp_path / "whole")
    check_index(tmp_path / "index")
    num_finished = 9 - num_killed
    num_encoded = sum(map(int, log.read_text().split()))
    assert num_encoded <= num_finished * num_passages + num_killed * SHARD
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index", "log", "other-log", "whole"]


def test_what_a_failed_build_encoded_is_not_encoded_again(tmp_path: Path) -> None:
    """Would catch hours of encoding that are lost to a full disk, or a resumed build that says nothing of it."""
    corpus, out = some_corpus(tmp_path / "corpus.jsonl", 3 * SHARD), tmp_path / "index"
    with pytest.raises(RuntimeError, match="out of memory"):
        build_index(corpus, out, CountingEncoder(most=2 * SHARD))
    assert not out.exists()
    encoder, notices, progress = CountingEncoder(), list[str](), list[int]()
    build_index(corpus, out, encoder, notice=notices.append, progress=lambda done, total: progress.append(done))
    assert (encoder.count, progress) == (SHARD, [SHARD, 2 * SHARD, 3 * SHARD])
    assert notices == ["2,048 of 3,072 passages were encoded before"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index"]


def test_a_disk_that_fails_at_the_last_moment_takes_no_vectors_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch encoded shards that are deleted before the index that was made of them is on the disk."""
    corpus, out, fsync = some_corpus(tmp_path / "corpus.jsonl", 2 * SHARD), tmp_path / "index", os.fsync

    def failing_fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").resolve().name == MANIFEST_FILE:
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing_fsync)
    with pytest.raises(IndexFolderError, match=r"index: the index cannot be written \(Input/output error\)"):
        build_index(corpus, out, CountingEncoder())
    monkeypatch.undo()
    encoder = CountingEncoder()
    build_index(corpus, out, encoder)
    assert encoder.count == 0
    assert [path.name for path in tmp_path.glob(".*")] + [path.name for path in out.glob("shards")] == []


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY rubbish", None])
def test_a_shard_that_the_disk_has_lost_is_encoded_again(content: bytes | None, tmp_path: Path) -> None:
    """Would catch a torn shard that ends each build from then on, or that is taken for vectors."""
    corpus, out = some_corpus(tmp_path / "corpus.jsonl", 3 * SHARD), tmp_path / "index"
    with pytest.raises(RuntimeError, match="out of memory"):
        build_index(corpus, out, CountingEncoder(most=2 * SHARD))
    shard = tmp_path / ".index.building" / "shards" / "000001.npy"
    shard.write_bytes(shard.read_bytes()[:-1] if content is None else content)
    encoder = CountingEncoder()
    build_index(corpus, out, encoder)
    assert encoder.count == 2 * SHARD
    assert check_index(out).num_passages == 3 * SHARD


@pytest.mark.parametrize(
    ("num_passages", "dimension", "reason"),
    [
        (2 * SHARD, 64, "the encoder changed since"),
        (2 * SHARD + 1, 256, "the corpus and the number of passages changed since"),
        (2 * SHARD + 1, 64, "the corpus and the number of passages and the encoder changed since"),
    ],
)
def test_another_corpus_or_encoder_starts_anew_and_says_so(
    num_passages: int, dimension: int, reason: str, tmp_path: Path
) -> None:
    """Would catch vectors of an old corpus or model in a new index: every answer looks fine and is wrong."""
    out = tmp_path / "index"
    with pytest.raises(RuntimeError):
        build_index(some_corpus(tmp_path / "c.jsonl", 2 * SHARD), out, CountingEncoder(most=SHARD))
    encoder, notices = CountingEncoder(dimension=dimension), list[str]()
    build_index(some_corpus(tmp_path / "c.jsonl", num_passages), out, encoder, notice=notices.append)
    assert encoder.count == num_passages
    assert notices == [f"encoding starts anew: {reason}"]


def test_shards_of_before_backends_were_named_are_taken(tmp_path: Path) -> None:
    """Would catch an update of this package, a new field of the spec in it, that encodes for hours once more."""
    corpus, out = some_corpus(tmp_path / "c.jsonl", 2 * SHARD), tmp_path / "index"
    before, after = CountingEncoder(most=SHARD), CountingEncoder()
    before.spec = after.spec = replace(before.spec, backend="torch")
    with pytest.raises(RuntimeError):
        build_index(corpus, out, before)
    key = tmp_path / ".index.building" / "shards" / "key.json"
    content = orjson.loads(key.read_bytes())
    del content["encoder"]["backend"]
    key.write_bytes(orjson.dumps(content))
    build_index(corpus, out, after)
    assert after.count == SHARD


def test_another_kind_takes_the_vectors_that_are_there(tmp_path: Path) -> None:
    """Would catch a kind that cannot be trained on so few passages, and takes their vectors with it."""
    corpus, out = some_corpus(tmp_path / "c.jsonl", SHARD), tmp_path / "index"
    with pytest.raises(IndexFolderError, match="1,024 passages are too few for this kind of index; their vectors stay"):
        build_index(corpus, out, CountingEncoder(), kind="IVF2000,Flat")
    encoder = CountingEncoder()
    build_index(corpus, out, encoder)
    assert encoder.count == 0
    build_index(corpus, tmp_path / "other", CountingEncoder())
    assert contents(out) == contents(tmp_path / "other")


def test_two_builds_of_one_index_do_not_mix(tmp_path: Path) -> None:
    """Would catch two processes that write one folder."""
    corpus, out = write_corpus(tmp_path / "c.jsonl", PLANETS), tmp_path / "index"
    with (tmp_path / ".index.building.lock").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(IndexFolderError, match="another build is writing it"):
            build_index(corpus, out, BagOfWordsEncoder())
        assert sorted(path.name for path in tmp_path.iterdir()) == [".index.building.lock", "c.jsonl"]
    build_index(corpus, out, BagOfWordsEncoder())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "index"]


class BrokenEncoder(BagOfWordsEncoder):
    """Gives `value` in the vector of the third passage, or vectors of another length."""

    def __init__(self, value: float | None) -> None:
        super().__init__()
        self._value = value

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        vectors_ND = super().encode_passages(texts)
        if self._value is None:
            return vectors_ND[:, :-1]
        vectors_ND[2, 5] = self._value
        return vectors_ND


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "a vector that is not finite for passage 3 of the corpus"),
        (float("inf"), "a vector that is not finite for passage 3 of the corpus"),
        (None, r"vectors of shape \(6, 255\), not \(6, 256\)"),
    ],
)
def test_vectors_that_cannot_be_searched_are_refused(value: float | None, message: str, tmp_path: Path) -> None:
    """Would catch NaN in an index: that passage is never found, and in a graph its neighbours neither."""
    corpus = write_corpus(tmp_path / "c.jsonl", PLANETS)
    with pytest.raises(IndexFolderError, match=message):
        build_index(corpus, tmp_path / "index", BrokenEncoder(value))
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]


@pytest.mark.slow
def test_a_real_encoder_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    """Would catch shards whose vectors depend on which passages were encoded before them."""
    corpus = some_corpus(tmp_path / "c.jsonl", SHARD + 300, num_words=3)
    command = [sys.executable, "-m", "search_rl.cli.main", "index", "build", "--corpus", str(corpus), "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True, timeout=300)
    with subprocess.Popen([*command, str(tmp_path / "index")], stderr=subprocess.DEVNULL) as build:
        while not (tmp_path / ".index.building" / "shards" / "000000.npy").exists():
            assert build.poll() is None
            time.sleep(0.01)
        build.send_signal(signal.SIGKILL)
    assert not (tmp_path / "index").exists()
    done = subprocess.run([*command, str(tmp_path / "index")], check=True, capture_output=True, text=True, timeout=300)
    assert "1,024 of 1,324 passages were encoded before" in done.stderr
    assert contents(tmp_path / "index") == contents(tmp_path / "whole")
    dense = read_manifest(tmp_path / "index").dense
    assert dense is not None and dense.encoder.pooling == "mean"
    assert dense.encoder.revision.startswith("sha256:")
