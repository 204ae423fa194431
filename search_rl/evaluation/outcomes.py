"""What became of one question, without its tokens: all that figures, comparisons and reports are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from search_rl import rewards
from search_rl.evaluation.retrieval_figures import open_answers
from search_rl.evaluation.runner import is_failed
from search_rl.evidence import evidence_of
from search_rl.profiles import Metric, Profile, Scores
from search_rl.types import Question, Search, StopReason, Trajectory

ALL = "all"
_KIND_ORDER = ("one_hop", "two_hop", "comparison")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question's result; a failed one has no answer and scores 0.

    `queries` are those asked, answered or not; one whose passages the prompt holds comes first. `evidence_found` is the
    share of the evidence that was read, None where the question names none. `is_answer_read` says whether an
    accepted answer stood in a passage that was read, None where all accepted ones are yes or no.
    """

    question: Question
    answer: str | None
    scores: Scores
    stop_reason: StopReason
    queries: tuple[str, ...]
    num_searches: int
    is_well_formed: bool
    is_failed: bool
    evidence_found: float | None
    is_answer_read: bool | None
    policy_tokens: int
    sequence_tokens: int
    episode_seconds: float

    def score(self, metric: Metric) -> float:
        """One of the scores."""
        return float(getattr(self.scores, metric))


@dataclass(frozen=True, slots=True)
class Groups(Generic[T]):
    """Items by the name of their row: `strata` are what averages are over, `kinds` finer rows below some of them."""

    strata: Mapping[str, Sequence[T]]
    kinds: Mapping[str, Mapping[str, Sequence[T]]]

    @property
    def rows(self) -> dict[str, Sequence[T]]:
        """Everything under ALL, then each stratum with its kinds behind it."""
        rows: dict[str, Sequence[T]] = {ALL: [it for members in self.strata.values() for it in members]}
        for name, members in self.strata.items():
            rows[name] = members
            rows |= {f"{name}: {kind}": found for kind, found in self.kinds.get(name, {}).items()}
        return rows


def outcome_of(trajectory: Trajectory, profile: Profile) -> Outcome:
    """The outcome of an episode as the profile scores it."""
    question = trajectory.question
    actions = [turn.action for turn in trajectory.turns]
    asked_queries = [query for action in actions if isinstance(action, Search) for query in action.queries]
    given_queries = [trajectory.given.query] if trajectory.given is not None and trajectory.given.query else []
    return Outcome(
        question=question,
        answer=trajectory.answer,
        scores=profile.scores(trajectory.answer, question.golden_answers),
        stop_reason=trajectory.stop_reason,
        queries=(*given_queries, *asked_queries),
        num_searches=trajectory.num_searches,
        is_well_formed=bool(rewards.format(trajectory)),
        is_failed=is_failed(trajectory),
        evidence_found=rewards.evidence_hit(trajectory) if evidence_of(question) else None,
        is_answer_read=_is_answer_read(trajectory, profile),
        policy_tokens=sum(len(segment.token_ids) for segment in trajectory.segments if segment.is_policy),
        sequence_tokens=len(trajectory.prompt.token_ids) + len(trajectory.response_ids),
        episode_seconds=trajectory.given_seconds
        + sum(turn.generate_seconds + turn.search_seconds for turn in trajectory.turns),
    )


def set_of(question: Question) -> str:
    """The data set of a question."""
    return _row_name(question.dataset or "other")


def kind_of(question: Question) -> str:
    """The kind of a question, or its data set where it has none."""
    return _row_name(question.kind) if question.kind else set_of(question)


def group(outcomes: Iterable[Outcome]) -> Groups[Outcome]:
    """See `group_by`."""
    return group_by(outcomes, lambda outcome: outcome.question)


def group_by(items: Iterable[T], question_of: Callable[[T], Question]) -> Groups[T]:
    """The items of one data set by kind, easiest first and unknown ones by name; those of several by data set, and
    below it by kind where it has more than one.
    """
    by_set = _by_name((set_of(question_of(item)), item) for item in items)
    kinds = {name: _by_name((kind_of(question_of(it)), it) for it in members) for name, members in by_set.items()}
    if len(by_set) == 1:
        return Groups(next(iter(kinds.values())), {})
    return Groups(by_set, {name: members for name, members in kinds.items() if len(members) > 1})


def paired(first: Sequence[Outcome], second: Sequence[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """The outcomes of the questions that both hold, in the order of the second."""
    earlier = {outcome.question.key: outcome for outcome in first}
    return [(earlier[key], outcome) for outcome in second if (key := outcome.question.key) in earlier]


def to_row(outcome: Outcome) -> dict[str, Any]:
    """The outcome as a row that `search-rl score` reads too. `id` is the key, which no two data sets share."""
    question = outcome.question
    return {
        "id": question.key,
        "dataset": question.dataset,
        "kind": question.kind,
        "question": question.text,
        "golden_answers": list(question.golden_answers),
        "prediction": outcome.answer,
        "exact_match": outcome.scores.exact_match,
        "f1": outcome.scores.f1,
        "cover_exact_match": outcome.scores.cover_exact_match,
        "token_cover_exact_match": outcome.scores.token_cover_exact_match,
        "stop_reason": str(outcome.stop_reason),
        "is_failed": outcome.is_failed,
        "queries": list(outcome.queries),
        "num_searches": outcome.num_searches,
        "evidence_found": outcome.evidence_found,
        "is_answer_read": outcome.is_answer_read,
        "policy_tokens": outcome.policy_tokens,
        "sequence_tokens": outcome.sequence_tokens,
        "episode_seconds": outcome.episode_seconds,
    }


def _row_name(name: str) -> str:
    """The name, unless it is that of the row of all questions."""
    return f"{name} (set)" if name == ALL else name


def _by_name(named: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for name, item in named:
        found.setdefault(name, []).append(item)
    known = [kind for kind in _KIND_ORDER if kind in found]
    return {name: found[name] for name in known + sorted(found.keys() - set(_KIND_ORDER))}


def _is_answer_read(trajectory: Trajectory, profile: Profile) -> bool | None:
    golds = open_answers(trajectory.question)
    if not golds:
        return None
    texts = (f"{passage.title}\n{passage.text}" for passage in trajectory.passages_read)
    return any(profile.token_cover_exact_match(text, golds) == 1.0 for text in texts)
