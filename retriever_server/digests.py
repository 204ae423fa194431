"""What tells a file from another of the same size: its SHA-256, and one of samples that is read in a moment."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

_NUM_SAMPLES = 64
_SAMPLE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file as it was written; `sample_sha256` is of its size and of 64 pieces spread evenly from start to end."""

    num_bytes: int
    sha256: str
    sample_sha256: str


def record_file(path: Path) -> FileRecord:
    """The record of a file, which is read whole."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileRecord(path.stat().st_size, digest, sample_sha256(path))


def sample_sha256(path: Path) -> str:
    """See FileRecord; a few milliseconds for any size."""
    num_bytes = path.stat().st_size
    digest = hashlib.sha256(str(num_bytes).encode())
    last = max(0, num_bytes - _SAMPLE_BYTES)
    with path.open("rb") as file:
        for position in sorted({last * number // (_NUM_SAMPLES - 1) for number in range(_NUM_SAMPLES)}):
            file.seek(position)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
