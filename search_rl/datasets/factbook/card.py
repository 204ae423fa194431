"""The data card: what was built, from what, and digests to tell two builds apart."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from search_rl.datasets.questions import QuestionRow

FILE_NAME = "data_card.json"
LICENCE = "public domain (a work of the US Government); the code of the package is under the MIT licence"


@dataclass(frozen=True, slots=True)
class FactbookCard:
    """Counts, digests (sha256 by file name), source, and the countries of each split."""

    source: str
    licence: str
    seed: int
    num_passages: int
    mean_passage_words: float
    max_passage_words: int
    num_questions: Mapping[str, int]
    num_by_kind: Mapping[str, Mapping[str, int]]
    num_by_relation: Mapping[str, Mapping[str, int]]
    countries: Mapping[str, Sequence[str]]
    sha256: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Write the card as JSON next to the data."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def count_kinds(rows: Iterable[QuestionRow]) -> dict[str, int]:
    """Questions by kind, in alphabetical order."""
    return dict(sorted(Counter(row.question.kind for row in rows).items()))


def count_relations(rows: Iterable[QuestionRow]) -> dict[str, int]:
    """Questions by relation, in alphabetical order."""
    return dict(sorted(Counter(row.relation for row in rows).items()))


def file_digest(path: Path) -> str:
    """The file's sha256 as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
