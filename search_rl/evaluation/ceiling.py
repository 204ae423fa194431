"""How far a retriever can take a policy: what one deep search for each question itself finds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from search_rl.errors import RetrieverError
from search_rl.evaluation.retrieval_figures import found_in, mean_of, open_answers
from search_rl.evaluation.statistics import Interval
from search_rl.evidence import evidence_of, evidence_ranks
from search_rl.profiles import Profile
from search_rl.search import Searcher
from search_rl.types import Question

DEPTHS = (1, 3, 5, 10, 20, 50, 100)


@dataclass(frozen=True, slots=True)
class CeilingRow:
    """One question: the places, from 1, of the first accepted answer and of each piece of evidence that was found."""

    answer_rank: int | None
    has_open_answer: bool
    evidence_ranks: tuple[int, ...]
    num_evidence: int
    is_failed: bool = False


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the best k passages for the questions hold, by k; None where no question tells.

    Answers as in `retrieval_figures`; `evidence_complete_at` is the share of questions with all evidence within k. A
    search that failed found nothing.
    """

    num_questions: int
    num_failed: int
    answer_hit_at: Mapping[int, Interval | None]
    evidence_recall_at: Mapping[int, Interval | None]
    evidence_complete_at: Mapping[int, Interval | None]


async def ceiling_rows(
    questions: Sequence[Question], *, searcher: Searcher, profile: Profile, concurrency: int
) -> list[CeilingRow]:
    """One row a question, in order; each costs a search 100 deep."""
    rows: dict[int, CeilingRow] = {}
    waiting = iter(enumerate(questions))

    async def work() -> None:
        for index, question in waiting:
            rows[index] = await _row(question, searcher, profile)

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return [rows[index] for index in range(len(questions))]


def ceiling(rows: Sequence[CeilingRow]) -> Ceiling:
    """The figures of some rows."""
    open_rows = [row for row in rows if row.has_open_answer]
    named = [row for row in rows if row.num_evidence]
    return Ceiling(
        num_questions=len(rows),
        num_failed=sum(row.is_failed for row in rows),
        answer_hit_at={
            k: mean_of(row.answer_rank is not None and row.answer_rank <= k for row in open_rows) for k in DEPTHS
        },
        evidence_recall_at={k: mean_of(_num_within(row, k) / row.num_evidence for row in named) for k in DEPTHS},
        evidence_complete_at={k: mean_of(_num_within(row, k) == row.num_evidence for row in named) for k in DEPTHS},
    )


async def _row(question: Question, searcher: Searcher, profile: Profile) -> CeilingRow:
    num_evidence = len(evidence_of(question))
    has_open_answer = bool(open_answers(question))
    try:
        result = await searcher.search(question.text, DEPTHS[-1])
    except RetrieverError:
        return CeilingRow(None, has_open_answer, (), num_evidence, is_failed=True)
    return CeilingRow(
        answer_rank=found_in(result, question, profile).answer_rank,
        has_open_answer=has_open_answer,
        evidence_ranks=tuple(evidence_ranks(question, [hit.passage for hit in result.passages]).values()),
        num_evidence=num_evidence,
    )


def _num_within(row: CeilingRow, k: int) -> int:
    return sum(rank <= k for rank in row.evidence_ranks)
