"""Bring memory-mapped files into memory: FAISS maps them for random access, so a cold scan would read page by page."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

from retriever_server.errors import IndexFolderError

_CHUNK_BYTES = 8 * 2**20


def read_ahead(folder: Path) -> int:
    """How many bytes were read, once and in order: all files of the folder, or 0 when they do not fit in memory.

    All processes that map the files share them then. Raises IndexFolderError.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    try:
        if sum(path.stat().st_size for path in paths) > psutil.virtual_memory().available:
            return 0
        return sum(map(_read, paths))
    except OSError as error:
        raise IndexFolderError(f"{folder}: cannot be read ({error}); copy it whole or build it again") from error


def read_part_ahead(path: Path, start: int, num_bytes: int) -> int:
    """The same for some bytes of a file."""
    try:
        return _read(path, start, num_bytes) if num_bytes <= psutil.virtual_memory().available else 0
    except OSError as error:
        raise IndexFolderError(f"{path}: cannot be read ({error}); copy it whole or build it again") from error


def _read(path: Path, start: int = 0, num_bytes: int = sys.maxsize) -> int:
    buffer, num_read = memoryview(bytearray(_CHUNK_BYTES)), 0
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        file.seek(start)
        while count := file.readinto(buffer[: num_bytes - num_read]):
            num_read += count
    return num_read
