"""Corpus files: rows of `.jsonl` or `.jsonl.gz` in, passages out. Nothing here knows of vectors.

A row has an `id` and either `title` and `text` (one may be missing) or Search-R1's `contents`; `url` is
optional, other fields are ignored.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from retriever_server.errors import CorpusError
from retriever_server.schema import Passage


class _RowFault(ValueError):
    """What is wrong with a row; the reader adds where."""


def read_corpus(path: Path) -> Iterator[Passage]:
    """The passages of a corpus file in order; one row in memory at a time, and all ids.

    Blank lines are skipped. Raises CorpusError for the first row that is no passage or repeats an id.
    """
    first_lines: dict[str, int] = {}
    for line_number, line in _lines(path):
        if not line.strip():
            continue
        try:
            passage = parse_row(line)
        except _RowFault as fault:
            raise CorpusError(path, line_number, str(fault)) from fault
        first_line = first_lines.setdefault(passage.id, line_number)
        if first_line != line_number:
            raise CorpusError(path, line_number, f"id {passage.id!r} was already used in line {first_line}")
        yield passage


def parse_row(line: bytes) -> Passage:
    """The passage in one JSON row. Raises ValueError with the fault.

    `title` and `text` win over `contents`. Line breaks in a title become spaces: to clients the first line is
    the title.
    """
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _RowFault(f"not valid JSON ({error})") from error
    if not isinstance(row, dict):
        raise _RowFault(f"expected a JSON object, got {type(row).__name__}")
    title, text = split_contents(_string(row, "contents"))
    title = " ".join(_string(row, "title", title).split())
    text = _string(row, "text", text).strip()
    if not title and not text:
        raise _RowFault("no passage: title, text and contents are all missing or empty")
    return Passage(id=_id(row), title=title, text=text, url=_string(row, "url"))


def split_contents(contents: str) -> tuple[str, str]:
    """Title and text of Search-R1's layout; contents of one line are all text.

    Here we differ from Search-R1's clients, to whom a lone line is a title with no text.
    """
    first_line, line_break, rest = contents.strip().partition("\n")
    if not line_break:
        return "", first_line
    title = first_line.strip()
    if len(title) >= 2 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return title, rest


def _id(row: dict[str, Any]) -> str:
    value = row.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise _RowFault(f"id must be a non-empty string, got {value!r:.80}")
    return value


def _string(row: dict[str, Any], field: str, default: str = "") -> str:
    value = row.get(field)
    if value is None:
        return default
    if not isinstance(value, str):
        raise _RowFault(f"{field} must be a string, got {type(value).__name__}")
    return value


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    line_number = 0
    try:
        with _open(path) as file:
            for line_number, line in enumerate(file, start=1):
                yield line_number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(path, line_number + 1, f"the gzip file is damaged or cut short ({error})") from error
    except OSError as error:
        raise CorpusError(path, None, f"cannot be read ({error.strerror or error})") from error


def _open(path: Path) -> BinaryIO:
    if path.name.endswith(".jsonl.gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.name.endswith(".jsonl"):
        return path.open("rb")
    raise CorpusError(path, None, "not a corpus: the name must end in .jsonl or .jsonl.gz")
