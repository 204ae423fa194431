"""The episodes of an evaluation on disk: written as they end, read one at a time."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, overload

from search_rl import records
from search_rl.errors import DataError, SearchRLError
from search_rl.records import Record
from search_rl.types import Question, Rollout


@dataclass(frozen=True, slots=True)
class StoredRollouts(Sequence[Rollout]):
    """Rollouts that are read from their file when they are asked for; `offsets_bytes` says where each begins."""

    path: Path
    offsets_bytes: Sequence[int]

    def __len__(self) -> int:
        return len(self.offsets_bytes)

    def __iter__(self) -> Iterator[Rollout]:
        with self.path.open("rb") as file:
            for offset_bytes in self.offsets_bytes:
                yield record_at(file, offset_bytes, self.path).rollout

    @overload
    def __getitem__(self, index: int) -> Rollout: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Rollout, ...]: ...
    def __getitem__(self, index: int | slice) -> Rollout | tuple[Rollout, ...]:
        chosen = self.offsets_bytes[index]
        if isinstance(chosen, int):
            with self.path.open("rb") as file:
                return record_at(file, chosen, self.path).rollout
        return tuple(StoredRollouts(self.path, chosen))


@dataclass(frozen=True, slots=True)
class EpisodeWriter:
    """Adds rows to an episode file that stays open; a row is with the system before `write` returns."""

    path: Path
    file: FileIO

    def write(self, rollout: Rollout, metadata: Mapping[str, Any]) -> int:
        """The byte at which the new row begins. Raises SearchRLError when the disk is full; rows before it stay."""
        line = records.encode_row(records.rollout_to_row(rollout, metadata))
        try:
            offset_bytes = self.file.tell()
            if self.file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        return offset_bytes


@contextmanager
def writing(path: Path) -> Iterator[EpisodeWriter]:
    """A writer at the end of the file, which is made when there is none; a last row that was cut short goes."""
    try:
        records.close_last_row(path)
        file = FileIO(path, "ab")
    except OSError as error:
        raise _cannot_write(path, error) from error
    with file:
        yield EpisodeWriter(path, file)


def done_in(path: Path, questions: Sequence[Question], on_done: Callable[[Rollout], None]) -> dict[str, int]:
    """Where the row of each question begins that the file answers as it stands, by the question's key.

    Rows that failed (void ones) are left out; `on_done` hears of the others. Raises DataError for a row that cannot be
    read.
    """
    asked = {question.key: question for question in questions}
    offsets: dict[str, int] = {}
    rows = records.read_with_offsets(path) if path.exists() else ()
    for offset_bytes, record in rows:
        trajectory = record.rollout.trajectory
        key = trajectory.question.key
        if asked.get(key) == trajectory.question and not trajectory.is_void:
            if key not in offsets:
                on_done(record.rollout)
            offsets[key] = offset_bytes
    return offsets


def stored_rollouts(path: Path, keys: Sequence[str] = ()) -> StoredRollouts:
    """The rollouts of the questions with these keys in their order, or else all in the order of the first rows; of a
    question asked again the last one.
    """
    offsets = {
        record.rollout.trajectory.question.key: offset_bytes for offset_bytes, record in records.read_with_offsets(path)
    }
    return StoredRollouts(path, array("q", [offsets[key] for key in keys or offsets if key in offsets]))


def record_at(file: BinaryIO, offset_bytes: int, path: Path) -> Record:
    """The record that begins at this byte of an open file. Raises DataError where none does."""
    file.seek(offset_bytes)
    try:
        return records.row_to_record(records.decode_row(file.readline()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} changed while it was read: no rollout at byte {offset_bytes}") from error


def _cannot_write(path: Path, error: OSError) -> SearchRLError:
    return SearchRLError(f"cannot write {path}: {error.strerror}; make room and resume")
