"""What an episode file tells beyond the scores: retrieval, cost, and which questions failed and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any

from search_rl import records
from search_rl.evaluation.cost import Cost, CostTally, Prices
from search_rl.evaluation.episode_file import StoredRollouts
from search_rl.evaluation.outcomes import group_by
from search_rl.evaluation.retrieval_figures import RetrievalFigures, RetrievalRow, retrieval_figures, retrieval_row
from search_rl.evaluation.runner import is_failed
from search_rl.profiles import Profile
from search_rl.types import Question


@dataclass(frozen=True, slots=True)
class FailedQuestion:
    """A question that could not be asked properly and counts 0."""

    key: str
    stop_reason: str
    error: str


@dataclass(frozen=True, slots=True)
class Measured:
    """`retrieval` has the rows of a summary: "all", then data sets and kinds of question."""

    retrieval: Mapping[str, RetrievalFigures]
    cost: Cost
    failed: tuple[FailedQuestion, ...]


def measure(rollouts: StoredRollouts, *, profile: Profile, top_k: int, prices: Prices | None = None) -> Measured:
    """The figures from one pass over the file, in which one rollout at a time is in memory.

    Rows of the file that are not among the `rollouts` count for the cost alone. Raises ValueError for no rollouts.
    """
    counted = frozenset(rollouts.offsets_bytes)
    asked: list[tuple[Question, RetrievalRow]] = []
    failed: list[FailedQuestion] = []
    tally = CostTally()
    for offset_bytes, record in records.read_with_offsets(rollouts.path):
        tally.add(record)
        if offset_bytes not in counted:
            continue
        trajectory = record.rollout.trajectory
        asked.append((trajectory.question, retrieval_row(trajectory, profile)))
        if is_failed(trajectory):
            question = trajectory.question
            failed.append(FailedQuestion(question.key, str(trajectory.stop_reason), trajectory.failure))
    depths = [k for k in (1, 3, 5, 10, 20) if k < top_k] + [top_k]
    return Measured(
        retrieval={
            name: retrieval_figures([row for _, row in members], depths=depths)
            for name, members in group_by(asked, itemgetter(0)).rows.items()
        },
        cost=tally.cost(num_questions=len(counted), num_right=sum(row.exact_match for _, row in asked), prices=prices),
        failed=tuple(failed),
    )


def measured_to_json(measured: Measured) -> dict[str, Any]:
    """The JSON form, to stand in a summary."""
    cost = measured.cost
    return {
        "failed": [asdict(question) for question in measured.failed],
        "retrieval": {name: asdict(figures) for name, figures in measured.retrieval.items()},
        "cost": {
            **asdict(cost),
            "money_per_question": cost.money_per_question,
            "money_per_right_answer": cost.money_per_right_answer,
        },
    }
