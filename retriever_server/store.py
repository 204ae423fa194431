"""Passages on disk, by row: a JSONL file and the byte offset of each row, both memory-mapped."""

from __future__ import annotations

import hashlib
import itertools
import mmap
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from retriever_server.errors import IndexFolderError
from retriever_server.schema import Passage

PASSAGES_FILE = "passages.jsonl"
OFFSETS_FILE = "offsets.npy"


def write_passages(passages: Iterable[Passage], folder: Path) -> str:
    """SHA-256 of the passages file that was written to `folder`, next to its offsets; 8 bytes a passage are held."""
    digest, offsets, position = hashlib.sha256(), array("Q", [0]), 0
    with (folder / PASSAGES_FILE).open("wb") as file:
        for passage in passages:
            row = orjson.dumps(passage, option=orjson.OPT_APPEND_NEWLINE)
            file.write(row)
            digest.update(row)
            position += len(row)
            offsets.append(position)
    np.save(folder / OFFSETS_FILE, np.frombuffer(offsets, dtype=np.uint64))
    return digest.hexdigest()


class PassageStore:
    """Random access to the passages of a folder; opening costs the same for any number of rows."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PASSAGES_FILE
        try:
            self._offsets: NDArray[np.uint64] = np.load(folder / OFFSETS_FILE, mmap_mode="r")
            with self._path.open("rb") as file:
                self._rows = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError, EOFError) as error:
            raise IndexFolderError(f"{folder}: the passages cannot be opened ({error}); build it again") from error
        if self._offsets.ndim != 1 or not len(self._offsets) or int(self._offsets[-1]) != len(self._rows):
            raise IndexFolderError(f"{folder}: {OFFSETS_FILE} does not fit {PASSAGES_FILE}; build it again")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Passage:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} passages")
        return Passage(**orjson.loads(self._rows[int(self._offsets[row]) : int(self._offsets[row + 1])]))

    def __iter__(self) -> Iterator[Passage]:
        return self.read(range(len(self)))

    def read(self, rows: range) -> Iterator[Passage]:
        """The passages of rows in succession, from the file: they do not add to the process's resident memory."""
        if not rows:
            return
        with self._path.open("rb") as file:
            file.seek(int(self._offsets[rows.start]))
            for line in itertools.islice(file, len(rows)):
                yield Passage(**orjson.loads(line))
