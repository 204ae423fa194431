"""`search-rl data get`: published sets and users' files as question files in Search-R1's schema, with a card."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from search_rl.datasets.benchmarks import Benchmark, Part, published_row
from search_rl.datasets.factbook.card import file_digest
from search_rl.datasets.foreign import FieldMapping, foreign_records
from search_rl.datasets.questions import QuestionFile, QuestionRow, records, usable_rows, write_questions
from search_rl.datasets.rows import BadRow, json_document
from search_rl.datasets.sources import commit_of, locate
from search_rl.errors import DataError
from search_rl.evidence import evidence_of


@dataclass(frozen=True, slots=True)
class Source:
    """A file that was read: its name where it is published, its sha256, the rows that were used and those left out.

    `commit` is the hub's that it was downloaded under, None for a file from elsewhere.
    """

    name: str
    sha256: str
    num_rows: int
    bad_rows: tuple[BadRow, ...]
    commit: str | None = None


@dataclass(frozen=True, slots=True)
class QuestionCard:
    """What a question file was made of. `revision` is the hub's that was asked for, None for the newest or where none
    applies.

    `num_with_evidence` questions name passages or articles.
    """

    name: str
    split: str
    num_questions: int
    num_by_dataset: dict[str, int]
    num_with_evidence: int
    sources: tuple[Source, ...]
    revision: str | None = None


def get_benchmark(
    benchmark: Benchmark,
    out: Path,
    *,
    folder: Path | None = None,
    revision: str | None = None,
    skip_bad: bool = False,
    allow_other_size: bool = False,
) -> QuestionCard:
    """The card of `out`/NAME.parquet, which is written with it.

    Raises DataError when a file is not to be had, holds a bad row, or has not the rows or the digest it is known for;
    with `allow_other_size` other rows and digests pass. Then nothing is written.
    """
    rows: list[QuestionRow] = []
    sources = []
    for part in benchmark.parts:
        path = locate(part, folder=folder, revision=revision)
        found = _read(path, part, skip_bad=skip_bad)
        name = f"{part.repository}/{part.path}"
        source = Source(name, file_digest(path), len(found.rows), found.bad_rows, commit_of(path))
        if not allow_other_size:
            _check(source, part)
        rows += found.rows
        sources.append(source)
    return _write(benchmark.name, benchmark.split, rows, sources, out, revision)


def get_file(
    path: Path, out: Path, *, mapping: FieldMapping, name: str, split: str, skip_bad: bool = False
) -> QuestionCard:
    """The card of `out`/NAME.parquet, made from a user's file. Raises DataError naming file, row and fault."""
    if Path(name).name != name:
        raise DataError(f"{name!r} cannot name a file: give another --name")
    numbered = ((number, (number, record)) for number, record in foreign_records(path, mapping))
    found = usable_rows(path, numbered, lambda pair: mapping.row(pair[1], pair[0], name), skip_bad=skip_bad)
    source = Source(path.name, file_digest(path), len(found.rows), found.bad_rows)
    return _write(name, split, list(found.rows), [source], out, None)


def _read(path: Path, part: Part, *, skip_bad: bool) -> QuestionFile:
    is_document = part.path.endswith(".json")
    numbered = enumerate(json_document(path), start=1) if is_document else records(path)
    return usable_rows(path, numbered, partial(published_row, part=part), skip_bad=skip_bad)


def _check(source: Source, part: Part) -> None:
    if source.num_rows != part.num_rows:
        raise DataError(
            f"{source.name} has {source.num_rows:,} usable rows, known are {part.num_rows:,}: scores would differ. "
            f"Get the whole file, or give --allow-other-size"
        )
    if part.sha256 is not None and source.sha256 != part.sha256:
        raise DataError(
            f"{source.name} has sha256 {source.sha256}, known is {part.sha256}: another version. Get that one, or give "
            f"--allow-other-size"
        )


def _write(
    name: str,
    split: str,
    rows: Sequence[QuestionRow],
    sources: Sequence[Source],
    out: Path,
    revision: str | None,
) -> QuestionCard:
    counts = Counter(row.question.dataset for row in rows)
    num_with_evidence = sum(bool(evidence_of(row.question)) for row in rows)
    by_dataset = dict(sorted(counts.items()))
    card = QuestionCard(name, split, len(rows), by_dataset, num_with_evidence, tuple(sources), revision)
    path = out / f"{name}.parquet"
    staging = path.with_suffix(".parquet.new")
    try:
        write_questions(staging, rows, split=split)
        staging.replace(path)
        text = json.dumps(asdict(card), indent=2, ensure_ascii=False)
        path.with_suffix(".card.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from error
    finally:
        staging.unlink(missing_ok=True)
    return card
