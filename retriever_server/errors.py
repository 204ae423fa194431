"""Errors meant for the user's eyes: what, which value, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


class RetrieverServerError(Exception):
    """Base of all errors of this package."""


class CorpusError(RetrieverServerError):
    """A corpus that cannot be read: file, line or row (from 1; None is the file as a whole) and fault."""

    def __init__(
        self, path: Path, line_number: int | None, fault: str, *, unit: Literal["line", "row"] = "line"
    ) -> None:
        self.path, self.line_number, self.fault = path, line_number, fault
        place = str(path) if line_number is None else f"{path}, {unit} {line_number}"
        super().__init__(f"{place}: {fault}")


class EncoderError(RetrieverServerError):
    """An embedding model that cannot be found, loaded, or used with an index."""


class IndexFolderError(RetrieverServerError):
    """An index folder that cannot be written, or that is foreign, truncated or of another make."""


class ServingError(RetrieverServerError):
    """The service cannot listen where it was told to."""


class ReloadError(RetrieverServerError):
    """The index on disk cannot take the place of the served one, and why."""


class BenchError(RetrieverServerError):
    """A measurement that cannot be made or was broken off, and why."""


class OverloadedError(RetrieverServerError):
    """The service is full or not ready; the same request may succeed after `retry_after_seconds`."""

    def __init__(self, reason: str, *, retry_after_seconds: int = 1) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(reason)


class PartGoneError(OverloadedError):
    """A part of the index on another machine cannot be reached now; an answer without it would be wrong."""
