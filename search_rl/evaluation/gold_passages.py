"""The passages that an oracle hands over, gathered while a corpus goes by."""

from __future__ import annotations

from collections.abc import Sequence

from search_rl.errors import DataError
from search_rl.evaluation.retrieval_figures import open_answers
from search_rl.evidence import title_key
from search_rl.profiles import SEARCH_R1
from search_rl.types import Passage, Question


class GoldPassages:
    """Evidence of `questions`, by passage id or by title.

    Of an article that the corpus has in several passages one is handed over: the first with an accepted answer of the
    question, else its first. Only evidence stays in memory.
    """

    def __init__(self, questions: Sequence[Question]) -> None:
        self._questions = questions
        self._wanted_ids = frozenset(identifier for question in questions for identifier in question.evidence_ids)
        self._by_id: dict[str, Passage] = {}
        self._asking: dict[str, list[Question]] = {}
        self._first: dict[str, Passage] = {}
        self._answering: dict[tuple[str, str], Passage] = {}
        for question in questions:
            for key in _titles(question):
                self._asking.setdefault(key, []).append(question)

    @property
    def num_titles(self) -> int:
        """How many articles are named."""
        return len(self._asking)

    @property
    def num_titles_missing(self) -> int:
        """How many of them no passage was of."""
        return len(self._asking) - len(self._first)

    def see(self, passage: Passage) -> None:
        """Keep the passage if it is evidence."""
        if passage.id in self._wanted_ids:
            self._by_id[passage.id] = passage
        if self._asking:
            key = title_key(passage.title)
            if key in self._asking:
                self._see_article(key, passage)

    def check(self) -> None:
        """Raise DataError when a passage that was named did not go by, or articles were and none of them did."""
        missing = self._wanted_ids - self._by_id.keys()
        if missing:
            raise DataError(f"{len(missing)} evidence passages are not in the corpus, such as {min(missing)!r}")
        if self._asking and not self._first:
            raise DataError(
                f"the corpus has a passage of none of the {self.num_titles} articles that questions name as evidence, "
                f"such as {min(self._asking)!r}"
            )

    def by_question(self) -> dict[str, tuple[Passage, ...]]:
        """The evidence of each question by its key, in the order that it names it; articles that did not go by lack."""
        return {question.key: self._of(question) for question in self._questions}

    def _of(self, question: Question) -> tuple[Passage, ...]:
        if question.evidence_ids:
            return tuple(self._by_id[identifier] for identifier in question.evidence_ids)
        return tuple(
            self._answering.get((question.key, key), self._first[key])
            for key in _titles(question)
            if key in self._first
        )

    def _see_article(self, key: str, passage: Passage) -> None:
        self._first.setdefault(key, passage)
        for question in self._asking[key]:
            place = question.key, key
            if place not in self._answering and SEARCH_R1.token_cover_exact_match(passage.text, open_answers(question)):
                self._answering[place] = passage


def _titles(question: Question) -> tuple[str, ...]:
    """The keys of the articles that are its evidence, each once, in order; none where passages are named."""
    if question.evidence_ids:
        return ()
    return tuple(dict.fromkeys(filter(None, map(title_key, question.evidence_titles))))
