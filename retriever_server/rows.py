"""Rows of `.jsonl` (plain, `.gz`, `.zst`) and `.parquet` files in, passages or faults out; nothing is held but a row.

A row has an `id` and either `title` and `text` (one may be missing) or Search-R1's `contents`; `url` is
optional, other fields are ignored.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import orjson

from retriever_server.errors import CorpusError
from retriever_server.schema import Passage

FaultKind = Literal["malformed", "empty", "duplicate"]
_FIELDS = ("id", "title", "text", "contents", "url")
_MAX_LINE_BYTES = 64 * 2**20
_BATCH_ROWS = 1024


class RowFault(ValueError):
    """What is wrong with a row or a document; the reader adds where."""

    def __init__(self, fault: str, kind: FaultKind = "malformed") -> None:
        self.kind: FaultKind = kind
        super().__init__(fault)


# Line or row (from 1; None is a document as a whole), and what it holds.
Found = tuple[int | None, Passage | RowFault]


def json_lines(path: Path) -> Iterator[Found]:
    """Each line that is not blank. Raises CorpusError when the file cannot be read to its end."""
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(_lines(file), start=1):
                if line is None:
                    yield number, RowFault(f"longer than {_MAX_LINE_BYTES // 2**20} MiB")
                elif line.strip():
                    yield number, _parsed(line)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(path, number + 1, f"the gzip file is damaged or cut short ({error})") from error
    except OSError as error:
        if path.suffix.lower() == ".zst" and error.errno is None:
            raise CorpusError(path, number + 1, f"the zstd file is damaged or cut short ({error})") from error
        raise CorpusError(path, None, f"cannot be read ({error.strerror or error})") from error


def parquet_rows(path: Path) -> Iterator[Found]:
    """Each row, by row group. Raises CorpusError when the file cannot be read to its end."""
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**20) as file:
            columns = _columns(path, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns, use_threads=False):
                for row in _rows(batch):
                    number += 1
                    yield number, row if isinstance(row, RowFault) else _passage_or_fault(row)
    except pyarrow.ArrowException as error:
        reason = str(error).partition("\n")[0]
        raise CorpusError(path, None, f"not a parquet file, damaged or cut short ({reason})") from error
    except OSError as error:
        raise CorpusError(path, None, f"cannot be read ({error.strerror or error})") from error


def parse_row(line: bytes) -> Passage:
    """The passage in one JSON row. Raises RowFault."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RowFault(f"not valid JSON ({error})") from error
    if not isinstance(row, dict):
        raise RowFault(f"expected a JSON object, got {type(row).__name__}")
    return passage_of(row)


def passage_of(row: Mapping[str, Any]) -> Passage:
    """The passage in the fields of a row. Raises RowFault.

    `title` and `text` win over `contents`. Line breaks in a title become spaces: to clients the first line is
    the title.
    """
    title, text = split_contents(_string(row, "contents"))
    title = " ".join(_string(row, "title", title).split())
    text = _string(row, "text", text).strip()
    if not title and not text:
        raise RowFault("no passage: title, text and contents are all missing or empty", "empty")
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


def _parsed(line: bytes) -> Passage | RowFault:
    try:
        return parse_row(line)
    except RowFault as fault:
        return fault


def _passage_or_fault(row: Mapping[str, Any]) -> Passage | RowFault:
    try:
        return passage_of(row)
    except RowFault as fault:
        return fault


def _id(row: Mapping[str, Any]) -> str:
    value = row.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise RowFault(f"id must be a non-empty string, got {value!r:.80}")
    return value


def _string(row: Mapping[str, Any], field: str, default: str = "") -> str:
    value = row.get(field)
    if value is None:
        return default
    if not isinstance(value, str):
        raise RowFault(f"{field} must be a string, got {type(value).__name__}")
    return value


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Each line; None for one that is too long to be held."""
    while line := file.readline(_MAX_LINE_BYTES + 1):
        if len(line) <= _MAX_LINE_BYTES:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(_MAX_LINE_BYTES)
        yield None


def _open(path: Path) -> BinaryIO:
    match path.suffix.lower():
        case ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        case ".zst":
            import pyarrow

            return cast(BinaryIO, io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd")))
    return path.open("rb")


def _columns(path: Path, names: list[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1 and name in _FIELDS})
    if "id" not in names or twice:
        what = f"column {twice[0]!r} is there twice" if twice else "no column 'id'"
        raise CorpusError(path, None, f"{what}; the columns are {', '.join(names)}")
    return [name for name in _FIELDS if name in names]


def _rows(batch: Any) -> list[Mapping[str, Any] | RowFault]:
    try:
        rows: list[Mapping[str, Any] | RowFault] = batch.to_pylist()
    except UnicodeDecodeError:
        return [_row(batch.slice(row, 1)) for row in range(batch.num_rows)]
    return rows


def _row(batch_of_one: Any) -> Mapping[str, Any] | RowFault:
    try:
        row: Mapping[str, Any] = batch_of_one.to_pylist()[0]
    except UnicodeDecodeError as error:
        return RowFault(f"text that is not UTF-8 ({error.reason})")
    return row
