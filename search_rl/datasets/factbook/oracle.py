"""What only the maker of the questions knows: the searches that answer each, and the relation it asks about.

A question's id begins with its relation: "capital/france", "currency-via-capital/algeria" (two hops: the
relation asked for, then the bridge), "more-area/chad/mali", "less-area/mali/niger".
"""

from __future__ import annotations

from pathlib import Path

from search_rl.datasets.questions import read_questions
from search_rl.types import Question


def read_oracle_queries(path: Path) -> dict[str, tuple[str, ...]]:
    """Search queries by question id, one a hop, in order; for demonstrations use those of train alone."""
    return {row.question.id: row.oracle_queries for row in read_questions(path).rows}


def relation_of(question: Question) -> str:
    """The relation of a Factbook question: "capital", "area-via-anthem", "more-population"."""
    return question.id.partition("/")[0]
