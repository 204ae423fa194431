"""The retrieval contract: passages, and the layout of `contents` (Search-R1, arXiv 2503.09516)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

# What can answer; `hybrid` needs both parts of an index folder, the controls `random` and `empty` need neither.
RetrieverName = Literal["dense", "bm25", "hybrid", "random", "empty"]
RETRIEVER_NAMES: tuple[RetrieverName, ...] = get_args(RetrieverName)
# (row of the corpus, score) of each hit, best first.
Hits = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of the corpus. Ids are strings and need not be row numbers."""

    id: str
    title: str
    text: str
    url: str = ""

    @property
    def contents(self) -> str:
        """Search-R1's layout: the quoted title, a newline, the text; clients split on the first newline."""
        return f'"{self.title}"\n{self.text}'


@dataclass(frozen=True, slots=True)
class ScoredPassage:
    """A hit; a higher score is a better hit, and scores compare only within one index."""

    passage: Passage
    score: float
