"""A user's own question file, whatever its columns are called: JSON lines, CSV or parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_rl.datasets.questions import QuestionRow, question_row, records
from search_rl.datasets.rows import RowFault, fields_of, plain
from search_rl.errors import DataError, unknown_name

EVIDENCE = ("evidence_ids", "evidence_titles")
FIELDS = ("id", "question", "golden_answers", "kind", "data_source", *EVIDENCE)
CSV_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """Which column of a file is which field of ours; a column inside another is written `outer.inner`.

    A field that is not mapped has its own name. A file without ids gets its row numbers. `separator` splits several
    golden answers, or pieces of evidence, in one text; a text that is a JSON list needs none.
    """

    columns: Mapping[str, str]
    separator: str | None = None

    def row(self, record: Any, number: int, dataset: str) -> QuestionRow:
        """One row. Raises RowFault that says what is wrong with it."""
        fields = fields_of(record)
        found = {name: _value(fields, self.columns.get(name, name)) for name in FIELDS}
        missing = [column for name, column in self.columns.items() if found[name] is None]
        if missing:
            raise RowFault(f"no {missing[0]!r} among {', '.join(map(str, fields))}")
        if found["id"] is None and "id" not in self.columns:
            found["id"] = number
        if "golden_answers" in self.columns or found["golden_answers"] is not None:
            found["golden_answers"] = self._texts(found["golden_answers"])
        kept = {name: value for name, value in found.items() if value is not None}
        given = fields.get("extra_info")
        extra = dict(given) if isinstance(given, Mapping) else {}
        extra |= {name: self._evidence(kept[name]) for name in EVIDENCE if name in kept}
        return question_row({**fields, **kept, "extra_info": extra}, default_dataset=dataset)

    def _evidence(self, value: Any) -> Any:
        listed = self._texts(value)
        return [listed] if isinstance(listed, str) else listed

    def _texts(self, value: Any) -> Any:
        value = plain(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and value == value:
            return [str(value)]
        if not isinstance(value, str):
            return value
        if self.separator:
            return [answer.strip() for answer in value.split(self.separator) if answer.strip()]
        try:
            listed = json.loads(value) if value.lstrip().startswith("[") else value
        except ValueError:
            return value
        return listed


def parse_mapping(pairs: list[str], separator: str | None) -> FieldMapping:
    """`FIELD=COLUMN` pairs as a mapping. Raises DataError or ConfigError for a pair that is none."""
    columns = {}
    for pair in pairs:
        name, equals, column = pair.partition("=")
        if not equals or not column:
            raise DataError(f"{pair!r} is no mapping; write FIELD=COLUMN, such as question=prompt")
        if name not in FIELDS:
            raise unknown_name("field", name, FIELDS)
        columns[name] = column
    return FieldMapping(columns, separator)


def foreign_records(path: Path, mapping: FieldMapping) -> Iterator[tuple[int, Any]]:
    """The records of a file with their numbers, and all that the mapping takes from them.

    Raises DataError for a file that cannot be read.
    """
    if path.suffix not in CSV_DELIMITERS:
        return records(path, needed={column.split(".")[0] for column in mapping.columns.values()})
    if not path.is_file():
        raise DataError(f"no question file at {path}")
    return _csv_records(path)


def _csv_records(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for number, row in enumerate(csv.DictReader(file, delimiter=CSV_DELIMITERS[path.suffix]), start=1):
                yield number, {name: value for name, value in row.items() if value not in (None, "")}
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a readable {path.suffix[1:]} file: {error}") from error


def _value(fields: Mapping[str, Any], column: str) -> Any:
    if column in fields:
        return fields[column]
    value: Any = fields
    for name in column.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
