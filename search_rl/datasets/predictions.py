"""Prediction files: JSON lines of `id`, `prediction`, `golden_answers` and, if they like, `question`; other fields are
let be.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_rl.datasets.rows import (
    BadRow,
    RowFault,
    any_text,
    fields_of,
    golden_answers,
    identifier,
    is_missing,
    json_records,
)
from search_rl.errors import DataError


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was answered to one question; `text` is None where nothing was, `question` empty where the file has none."""

    id: str
    text: str | None
    golden_answers: tuple[str, ...]
    question: str = ""


@dataclass(frozen=True, slots=True)
class PredictionFile:
    """What a file held; `bad_rows` is empty unless they were asked to be skipped."""

    predictions: tuple[Prediction, ...]
    bad_rows: tuple[BadRow, ...] = ()


def read_predictions(path: Path, *, skip_bad: bool = False) -> PredictionFile:
    """The rows in file order. A prediction that is absent, null or NaN is missing, which is no fault.

    Raises DataError naming file, line and fault at the first bad row, or, with `skip_bad`, only when no row is left.
    """
    predictions: list[Prediction] = []
    bad_rows: list[BadRow] = []
    line_of: dict[str, int] = {}
    try:
        for number, record in json_records(path):
            try:
                predictions.append(_prediction(record, number, line_of))
            except RowFault as fault:
                if not skip_bad:
                    raise DataError(f"{path} line {number}: {fault}; mend it or give --skip-bad") from fault
                bad_rows.append(BadRow(number, str(fault)))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if not predictions:
        raise DataError(f"{path} holds no usable prediction ({len(bad_rows)} bad rows)")
    return PredictionFile(tuple(predictions), tuple(bad_rows))


def _prediction(record: Any, number: int, line_of: dict[str, int]) -> Prediction:
    fields = fields_of(record)
    value = fields.get("prediction")
    prediction = Prediction(
        id=identifier(fields.get("id")),
        text=None if is_missing(value) else any_text(value, "prediction"),
        golden_answers=golden_answers(fields.get("golden_answers")),
        question="" if is_missing(fields.get("question")) else any_text(fields["question"], "question"),
    )
    first = line_of.setdefault(prediction.id, number)
    if first != number:
        raise RowFault(f"id {prediction.id!r} was used by line {first}")
    return prediction
