"""Encoded passages on disk, in shards of 1,024: what a killed build has finished is not encoded again."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from retriever_server.encoders import Encoder, EncoderSpec
from retriever_server.errors import IndexFolderError

SHARD_ROWS = 1024
_BLOCK_SHARDS = 32
_KEY_FILE = "key.json"


@dataclass(frozen=True, slots=True)
class ShardKey:
    """What the vectors are of; with another of these they are worth nothing."""

    corpus_sha256: str
    encoder: EncoderSpec
    rows: tuple[int, int]


class VectorShards:
    """Vectors of the rows `key.rows` of a corpus, as `.npy` files; a file that is there is whole."""

    def __init__(self, folder: Path, key: ShardKey, *, notice: Callable[[str], None]) -> None:
        """Keeps the shards that are in `folder` when they are of `key`; starts anew, and says so, when not."""
        self._folder, self._key = folder, key
        if folder.is_dir() and (reason := self._difference()):
            notice(f"encoding starts anew: {reason}")
            shutil.rmtree(folder)
        folder.mkdir(exist_ok=True)
        (folder / _KEY_FILE).write_bytes(orjson.dumps(asdict(key)))

    @property
    def num_rows(self) -> int:
        """Of all shards, encoded or not."""
        return self._key.rows[1] - self._key.rows[0]

    def encode_missing(
        self, encoder: Encoder, texts: Callable[[range], list[str]], progress: Callable[[int], None]
    ) -> None:
        """Encode the shards that are not there, `texts` being those of some rows of the corpus.

        `progress(newly_done)` counts rows, also those that were there. Raises IndexFolderError for vectors that
        cannot be searched.
        """
        for path, rows in self._shards():
            if not self._is_whole(path, rows):
                _write(path, finite(encoder.encode_passages(texts(rows)), rows, encoder.spec))
            progress(len(rows))

    def count_encoded(self) -> int:
        """Rows of the shards that are there."""
        return sum(len(rows) for path, rows in self._shards() if self._is_whole(path, rows))

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """All vectors in order, at most 32,768 at a time."""
        shards = (np.load(path) for path, _ in self._shards())
        while block := list(itertools.islice(shards, _BLOCK_SHARDS)):
            yield np.concatenate(block)

    def sample(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of some rows, which are in order and count from the first that is here."""
        first = self._key.rows[0]
        found = []
        for path, shard in self._shards():
            start, stop = np.searchsorted(rows, (shard.start - first, shard.stop - first))
            found.append(np.load(path)[rows[start:stop] + first - shard.start])
        return np.concatenate(found)

    def _shards(self) -> Iterator[tuple[Path, range]]:
        first, end = self._key.rows
        for number, start in enumerate(range(first, end, SHARD_ROWS)):
            yield self._folder / f"{number:06}.npy", range(start, min(start + SHARD_ROWS, end))

    def _is_whole(self, path: Path, rows: range) -> bool:
        try:
            shape: tuple[int, ...] = np.load(path, mmap_mode="r").shape
        except (OSError, ValueError, EOFError):
            return False
        return shape == (len(rows), self._key.encoder.dimension)

    def _difference(self) -> str:
        """Why the shards that are there are of no use; empty when they are."""
        try:
            found = asdict(TypeAdapter(ShardKey).validate_json((self._folder / _KEY_FILE).read_bytes()))
        except (OSError, ValidationError):
            return "what was encoded before is not known"
        ours = asdict(self._key)
        changed = {"corpus_sha256": "the corpus", "rows": "the number of passages", "encoder": "the encoder"}
        named = [name for field, name in changed.items() if found[field] != ours[field]]
        return f"{' and '.join(named)} changed since" if named else ""


def finite(vectors_ND: NDArray[np.float32], rows: range, spec: EncoderSpec) -> NDArray[np.float32]:
    """The vectors. Raises IndexFolderError when one is not finite: it would never be found, in silence."""
    expected = (len(rows), spec.dimension)
    if vectors_ND.shape != expected:
        raise IndexFolderError(f"encoder {spec.name!r} gave vectors of shape {vectors_ND.shape}, not {expected}")
    bad = np.flatnonzero(~np.isfinite(vectors_ND).all(axis=1))
    if len(bad):
        raise IndexFolderError(
            f"encoder {spec.name!r} gave a vector that is not finite for passage {rows[int(bad[0])] + 1:,} of the "
            "corpus; its weights or its compute type are broken"
        )
    return vectors_ND


def _write(path: Path, vectors_ND: NDArray[np.float32]) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.save(file, np.ascontiguousarray(vectors_ND, dtype=np.float32))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
