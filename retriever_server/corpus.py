"""A corpus, one file or a folder of files, read as a stream of passages. Nothing here knows of vectors."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from retriever_server.errors import CorpusError
from retriever_server.rows import FaultKind, Found, RowFault, json_lines, parquet_rows
from retriever_server.schema import Passage
from retriever_server.seen_ids import SeenIds

JSON_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
PARQUET_SUFFIX = ".parquet"
DOCUMENT_SUFFIXES = (".txt", ".md", ".html", ".htm", ".pdf")
CORPUS_SUFFIXES = (*JSON_SUFFIXES, PARQUET_SUFFIX, *DOCUMENT_SUFFIXES)
_SUFFIXES_TEXT = f"{', '.join(CORPUS_SUFFIXES[:-1])} or {CORPUS_SUFFIXES[-1]}"
_TOLD_FAULTS = 20
# The place of an id is the number of its file and, below, the number of its row.
_ROW_BITS = 40
_TAKEN = (1 << 64) - 1


@dataclass(slots=True)
class CorpusReport:
    """What a reading of a corpus met; it is filled in as the passages come.

    Without `skip_bad` the first bad row ends the reading. `faults` tells the first twenty.
    """

    skip_bad: bool = False
    num_passages: int = 0
    num_files: int = 0
    num_other_files: int = 0
    num_skipped: Counter[FaultKind] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """One line: what was read, what was skipped, and what was left out."""
        skipped = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.num_skipped.items())) or "none"
        others = f"; files of other kinds left out: {self.num_other_files:,}" if self.num_other_files else ""
        return f"passages: {self.num_passages:,}; files: {self.num_files:,}; rows skipped: {skipped}{others}"

    def skip(self, fault: RowFault, error: CorpusError) -> None:
        """Count a bad row. Raises the error unless bad rows are skipped."""
        if not self.skip_bad:
            raise error from fault
        self.num_skipped[fault.kind] += 1
        if len(self.faults) < _TOLD_FAULTS:
            self.faults.append(str(error))


def read_corpus(
    path: Path,
    *,
    chunk_words: int | None = None,
    taken_ids: Iterable[str] = (),
    report: CorpusReport | None = None,
) -> Iterator[Passage]:
    """The passages of a corpus in order, the files of a folder by name; in memory are one row and the ids' hashes.

    Documents are cut into chunks of at most `chunk_words` words (100), rows of `.jsonl` and `.parquet` are passages
    already. Blank lines are skipped. Raises CorpusError for the first row that is no passage, or whose id is in
    `taken_ids` or was used before; a `report` may ask to count and skip these.
    """
    report = report if report is not None else CorpusReport()
    seen = SeenIds()
    for passage_id in taken_ids:
        seen.claim(passage_id, _TAKEN)
    files = _files(path, report)
    if chunk_words is not None and not any(file.name.lower().endswith(DOCUMENT_SUFFIXES) for file in files):
        raise CorpusError(path, None, "rows are passages already: a number of words is for documents")
    for file_number, file in enumerate(files):
        report.num_files += 1
        for number, found in _found(file, path, chunk_words):
            place = (file_number << _ROW_BITS) | (number or 0)
            fault = found if isinstance(found, RowFault) else _claim(found, place, seen, files)
            if fault is not None:
                report.skip(fault, CorpusError(file, number, str(fault), unit=_unit(file)))
            elif isinstance(found, Passage):
                report.num_passages += 1
                yield found


def _files(path: Path, report: CorpusReport) -> list[Path]:
    """The file itself, or those of a folder and the folders in it that are not hidden."""
    if not path.is_dir():
        if not path.name.lower().endswith(CORPUS_SUFFIXES):
            raise CorpusError(path, None, f"not a corpus: the name must end in {_SUFFIXES_TEXT}")
        return [path]

    def refuse(error: OSError) -> None:
        raise CorpusError(Path(error.filename), None, f"cannot be read ({error.strerror})") from error

    files = []
    for folder, folders, names in os.walk(path, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible = sorted(name for name in names if not name.startswith("."))
        paths = [Path(folder, name) for name in visible if name.lower().endswith(CORPUS_SUFFIXES)]
        known = [path for path in paths if path.is_file() or not path.exists()]  # A pipe would be waited for.
        report.num_other_files += len(visible) - len(known)
        files += known
    if not files:
        raise CorpusError(path, None, f"not a corpus: no file in the folder ends in {_SUFFIXES_TEXT}")
    return files


def _found(file: Path, corpus: Path, chunk_words: int | None) -> Iterator[Found]:
    name = file.name.lower()
    if name.endswith(JSON_SUFFIXES):
        return json_lines(file)
    if name.endswith(PARQUET_SUFFIX):
        return parquet_rows(file)
    from retriever_server.chunking import DEFAULT_CHUNK_WORDS
    from retriever_server.documents import document_passages

    return document_passages(
        file, file.relative_to(corpus).as_posix() if file != corpus else file.name, chunk_words or DEFAULT_CHUNK_WORDS
    )


def _claim(passage: Passage, place: int, seen: SeenIds, files: list[Path]) -> RowFault | None:
    first = seen.claim(passage.id, place)
    if first is None:
        return None
    if first == _TAKEN:
        return RowFault(f"id {passage.id!r} is in the index already", "duplicate")
    file, number = files[first >> _ROW_BITS], first & ((1 << _ROW_BITS) - 1)
    places = [str(file)] if first >> _ROW_BITS != place >> _ROW_BITS else []
    places += [f"{_unit(file)} {number}"] if number else []
    return RowFault(f"id {passage.id!r} was already used in {', '.join(places)}", "duplicate")


def _unit(file: Path) -> Literal["line", "row"]:
    return "row" if file.name.lower().endswith(PARQUET_SUFFIX) else "line"
