"""The fields that rows of question and prediction files share, and what is wrong with one that cannot be used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_rl.errors import DataError


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used; `number` counts from 1 (in JSON lines it is the line number)."""

    number: int
    fault: str


class RowFault(ValueError):
    """Why one row cannot be used."""


def json_records(path: Path) -> Iterator[tuple[int, Any]]:
    """Each line that is not blank with its number; in place of one that is not JSON, the error."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _json_record(line)


def json_document(path: Path) -> list[Any]:
    """The items of a file that is one JSON list. Raises DataError for anything else."""
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, list):
        raise DataError(f"{path} holds a {type(document).__name__}, not a list of rows")
    return document


def fields_of(record: Any) -> Mapping[str, Any]:
    """The record as an object. Raises RowFault for anything else, and for the error that `json_records` gave."""
    if isinstance(record, ValueError):
        raise RowFault(f"not JSON: {record}")
    if not isinstance(record, Mapping):
        raise RowFault(f"{record!r} is not an object")
    return record


def plain(value: Any) -> Any:
    """Numpy arrays and scalars as Python values; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def is_missing(value: Any) -> bool:
    """True for None and for NaN, which is how data frames write it."""
    return value is None or bool(value != value)


def required_text(value: Any, name: str) -> str:
    """A text that says something. Raises RowFault that calls it `name`."""
    text = any_text(value, name)
    if not text.strip():
        raise RowFault(f"{name} is empty")
    return text


def any_text(value: Any, name: str) -> str:
    """A text, also an empty one. Raises RowFault that calls it `name`."""
    value = plain(value)
    if is_missing(value):
        raise RowFault(f"{name} is missing")
    if not isinstance(value, str):
        raise RowFault(f"{name} is {type(value).__name__} {value!r}, not text")
    if re.search("[\ud800-\udfff]", value):
        raise RowFault(f"{name} {value!r} holds half of a surrogate pair, which no file can store")
    return value


def identifier(value: Any) -> str:
    """A text, or a whole number as text. Raises RowFault."""
    value = plain(value)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else required_text(value, "id")


def golden_answers(value: Any) -> tuple[str, ...]:
    """A list of texts (also a numpy array), or one text. Raises RowFault for anything else and for an empty list."""
    value = plain(value)
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        raise RowFault(f"golden_answers is {value!r}, not a list of texts")
    if not value:
        raise RowFault("golden_answers is empty")
    return tuple(required_text(answer, "a golden answer") for answer in value)


def _json_record(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        return error
    except RecursionError:
        return ValueError("nested too deeply")
