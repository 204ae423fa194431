"""Question files: Search-R1's parquet schema (2503.09516) and plain JSON lines, to and from `Question`.

Beyond Search-R1's columns, `extra_info` may hold `kind`, `evidence_ids`, `evidence_titles`, `relation` and
`oracle_queries`. Kind and titles are also read from the `metadata` of the published sets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_rl.datasets.metadata import COLUMNS as METADATA_COLUMNS
from search_rl.datasets.metadata import kind_of, titles_of
from search_rl.datasets.rows import (
    BadRow,
    RowFault,
    fields_of,
    golden_answers,
    identifier,
    json_records,
    plain,
    required_text,
)
from search_rl.errors import DataError
from search_rl.types import Question

if TYPE_CHECKING:
    import pyarrow

RenderPrompt = Callable[[str], str]

_LARGE = frozenset({"prompt", "metadata"})


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """A question with what only its file knows: the `relation` it asks about and an oracle's searches."""

    question: Question
    relation: str = ""
    oracle_queries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """What a file held; `bad_rows` is empty unless they were asked to be skipped."""

    rows: tuple[QuestionRow, ...]
    bad_rows: tuple[BadRow, ...] = ()

    @property
    def questions(self) -> tuple[Question, ...]:
        """The questions in file order."""
        return tuple(row.question for row in self.rows)


def read_questions(path: Path, *, skip_bad: bool = False) -> QuestionFile:
    """The rows of a `.parquet`, `.jsonl` or `.json` (lines) file, in file order.

    The data set of a row is its `data_source`, else the file's stem. Raises DataError naming file, row and
    fault at the first bad row, or, with `skip_bad`, only when no row is left.
    """
    return usable_rows(
        path, records(path), lambda record: question_row(record, default_dataset=path.stem), skip_bad=skip_bad
    )


def usable_rows(
    path: Path, numbered: Iterable[tuple[int, Any]], make_row: Callable[[Any], QuestionRow], *, skip_bad: bool
) -> QuestionFile:
    """What `make_row` makes of the numbered records of `path`; it raises RowFault for a record it cannot use.

    Raises DataError as `read_questions` does, also for an id that stands twice in one data set.
    """
    rows: list[QuestionRow] = []
    bad_rows: list[BadRow] = []
    seen: dict[str, int] = {}
    for number, record in numbered:
        try:
            row = make_row(record)
            _claim_id(row.question, number, seen)
        except RowFault as fault:
            if not skip_bad:
                raise DataError(f"{path} row {number}: {fault}; mend it or skip bad rows") from fault
            bad_rows.append(BadRow(number, str(fault)))
        else:
            rows.append(row)
    if not rows:
        raise DataError(f"{path} holds no usable question ({len(bad_rows)} bad rows)")
    return QuestionFile(tuple(rows), tuple(bad_rows))


def question_row(record: Any, *, default_dataset: str = "") -> QuestionRow:
    """One row of a question file. Raises ValueError that says what is wrong with it.

    Golden answers may be a string, a list or a numpy array; without them the reward model's target counts.
    """
    record = fields_of(record)
    extra, metadata = _mapping(record.get("extra_info")), record.get("metadata")
    question = Question(
        id=identifier(record.get("id")),
        text=required_text(record.get("question"), "question"),
        golden_answers=_golden_answers(record),
        dataset=_optional_text(record.get("data_source")) or default_dataset,
        kind=_optional_text(record.get("kind") or extra.get("kind")) or kind_of(metadata),
        evidence_ids=_optional_texts(extra.get("evidence_ids")),
        evidence_titles=_optional_texts(extra.get("evidence_titles")) or titles_of(metadata),
    )
    return QuestionRow(
        question,
        relation=_optional_text(extra.get("relation")),
        oracle_queries=_optional_texts(extra.get("oracle_queries")),
    )


def write_questions(path: Path, rows: Sequence[QuestionRow], *, split: str, render_prompt: RenderPrompt = str) -> None:
    """Write a parquet file in Search-R1's schema; the same rows give the same bytes.

    `render_prompt` turns a question's text into the user message of the `prompt` column.
    """
    import pyarrow
    import pyarrow.parquet

    columns = [_record(row, index, split, render_prompt) for index, row in enumerate(rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(columns, schema=_schema()), path)


def _record(row: QuestionRow, index: int, split: str, render_prompt: RenderPrompt) -> dict[str, Any]:
    question = row.question
    answers = list(question.golden_answers)
    return {
        "id": question.id,
        "question": question.text,
        "golden_answers": answers,
        "data_source": question.dataset,
        "prompt": [{"role": "user", "content": render_prompt(question.text)}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": answers}},
        "extra_info": {
            "split": split,
            "index": index,
            "kind": question.kind,
            "relation": row.relation,
            "evidence_ids": list(question.evidence_ids),
            "evidence_titles": list(question.evidence_titles),
            "oracle_queries": list(row.oracle_queries),
        },
    }


def _schema() -> pyarrow.Schema:
    import pyarrow as pa

    texts = pa.list_(pa.string())
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    reward_model = pa.struct([("style", pa.string()), ("ground_truth", pa.struct([("target", texts)]))])
    extra_info = [
        ("split", pa.string()),
        ("index", pa.int64()),
        ("kind", pa.string()),
        ("relation", pa.string()),
        ("evidence_ids", texts),
        ("evidence_titles", texts),
        ("oracle_queries", texts),
    ]
    return pa.schema(
        [
            ("id", pa.string()),
            ("question", pa.string()),
            ("golden_answers", texts),
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", reward_model),
            ("extra_info", pa.struct(extra_info)),
        ]
    )


def records(path: Path, *, needed: Collection[str] = ()) -> Iterator[tuple[int, Any]]:
    """The raw records of a `.parquet`, `.jsonl` or `.json` (lines) file with their numbers, from 1.

    Of parquet's columns `prompt` and `metadata`, which are large, only what a question may need is read, unless they
    are `needed` whole. A line that is no JSON comes as its error.

    Raises DataError for a file that is not there, or of another kind.
    """
    if not path.is_file():
        raise DataError(f"no question file at {path}")
    match path.suffix:
        case ".parquet":
            return _parquet_records(path, _LARGE - set(needed))
        case ".jsonl" | ".json":
            return json_records(path)
    raise DataError(f"{path} ends in {path.suffix!r}; question files end in .parquet or .jsonl")


def _parquet_records(path: Path, left_out: Set[str]) -> Iterator[tuple[int, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            wanted = [name for name in file.schema_arrow.names if name not in left_out]
            wanted += [f"metadata.{name}" for name in METADATA_COLUMNS if "metadata" in left_out]
            batches = (batch.to_pylist() for batch in file.iter_batches(columns=wanted))
            yield from enumerate(chain.from_iterable(batches), start=1)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is not a readable parquet file: {error}") from error


def _claim_id(question: Question, number: int, seen: dict[str, int]) -> None:
    first = seen.setdefault(question.key, number)
    if first != number:
        raise RowFault(f"id {question.id!r} was used by row {first}")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _golden_answers(record: Mapping[str, Any]) -> tuple[str, ...]:
    answers = record.get("golden_answers")
    if answers is None:
        answers = _mapping(_mapping(record.get("reward_model")).get("ground_truth")).get("target")
    return golden_answers(answers)


def _optional_text(value: Any) -> str:
    value = plain(value)
    return value if isinstance(value, str) else ""


def _optional_texts(value: Any) -> tuple[str, ...]:
    value = plain(value)
    items = value if isinstance(value, list | tuple) else ()
    return tuple(str(item) for item in items if isinstance(item, str | int) and not isinstance(item, bool))
