"""The folder in which an index is built, beside its place, and the moment at which it takes that place."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from retriever_server.errors import IndexFolderError
from retriever_server.manifest import MANIFEST_FILE

SHARDS_FOLDER = "shards"
_SPARE_BYTES = 64 * 2**20
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextlib.contextmanager
def building_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out`, for one process at a time. When the build fails, or is killed, what it encoded stays.

    The rest goes, and all of it when nothing was encoded; an index that a killed build had taken from its place is
    back there. Raises IndexFolderError for what the disk refuses.
    """
    _check_out(out)
    folder = _folder_of(out)
    is_done = False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock"), out):
            _put_back(out)
            folder.mkdir(exist_ok=True)
            _clear(folder)
            _remove_shards(out)
            try:
                yield folder
                is_done = True
            finally:
                if not is_done and folder.is_dir():
                    _clear(folder)
                    if not any(folder.glob(f"{SHARDS_FOLDER}/*.npy")):
                        shutil.rmtree(folder)
    except OSError as error:
        raise IndexFolderError(f"{out}: the index cannot be written ({error.strerror or error})") from error


def take_place(folder: Path, out: Path) -> None:
    """Put the folder, written through to the disk, in the place of `out`; its encoded shards go only then.

    An index that is there is exchanged for it in one step and then deleted; where the file system cannot exchange
    (NFS), there is none for a moment.
    """
    _flush(folder)
    if not (out / MANIFEST_FILE).is_file():
        folder.rename(out.absolute())
    elif _exchange(folder, out.absolute()):
        shutil.rmtree(folder)
    else:
        out.rename(place_of_old(out))
        folder.rename(out.absolute())
        shutil.rmtree(place_of_old(out))
    _remove_shards(out)


def place_of_old(out: Path) -> Path:
    """Where an index lies while another takes its place, on a file system that cannot exchange them."""
    return _folder_of(out).with_name(f"{_folder_of(out).name}-old")


def built_files(folder: Path) -> list[Path]:
    """What was built in the folder, by name, without what takes part in building only."""
    top = sorted(path for path in folder.iterdir() if path.name != SHARDS_FOLDER)
    return [file for path in top for file in (path, *sorted(path.rglob("*"))) if file.is_file()]


def check_disk(folder: Path, needed_bytes: int, what: str) -> None:
    """Raise IndexFolderError unless `needed_bytes`, for `what`, are free, and a little more."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes + _SPARE_BYTES:
        raise IndexFolderError(
            f"{folder.parent}: {what} need {(needed_bytes + _SPARE_BYTES) / 1e9:.2f} GB, "
            f"{free_bytes / 1e9:.2f} GB are free; make room or give another --out"
        )


def _folder_of(out: Path) -> Path:
    return out.absolute().with_name(f".{out.absolute().name}.building")


def _put_back(out: Path) -> None:
    """What a build that was killed between two renames, or behind them, has left."""
    old = place_of_old(out)
    if old.is_dir() and out.exists():
        shutil.rmtree(old)
    elif old.is_dir():
        old.rename(out.absolute())


def _check_out(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST_FILE).is_file():
        raise IndexFolderError(f"{out}: a folder that is not an index is in the way; give another --out")
    if out.exists() and not out.is_dir():
        raise IndexFolderError(f"{out}: a file is in the way; give another --out")


@contextlib.contextmanager
def _locked(path: Path, out: Path) -> Iterator[None]:
    """The lock ends with the process, however that ends; its file, which another may have removed, with the build."""
    busy = IndexFolderError(f"{out}: another build is writing it; wait, or give another --out")
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise busy from error
        if not (path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))):
            raise busy
        try:
            yield
        finally:
            path.unlink()


def _clear(folder: Path) -> None:
    """Remove all but the encoded shards."""
    for path in folder.iterdir():
        if path.name == SHARDS_FOLDER:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _remove_shards(out: Path) -> None:
    """What a build leaves in its index when it is killed in its last moment."""
    shutil.rmtree(out / SHARDS_FOLDER, ignore_errors=True)


def _flush(folder: Path) -> None:
    for path in (*built_files(folder), *(path for path in folder.iterdir() if path.is_dir()), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _exchange(left: Path, right: Path) -> bool:
    """Whether the two folders have changed names."""
    exchange = getattr(ctypes.CDLL(None), "renameat2", None)
    if exchange is None:
        return False
    return bool(exchange(_AT_FDCWD, os.fsencode(left), _AT_FDCWD, os.fsencode(right), _RENAME_EXCHANGE) == 0)
