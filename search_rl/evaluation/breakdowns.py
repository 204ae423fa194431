"""Scores by what an episode did: how often it searched, and whether it read what it needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from search_rl.evaluation.outcomes import Outcome
from search_rl.evaluation.statistics import Interval, mean_interval
from search_rl.profiles import Metric

MANY_SEARCHES = 5


def by_searches(outcomes: Sequence[Outcome], metric: Metric) -> dict[str, Interval]:
    """The metric by the number of searches that were answered; five and more stand together."""
    return _by(((min(outcome.num_searches, MANY_SEARCHES), outcome) for outcome in outcomes), metric, _searches_name)


def by_evidence(outcomes: Sequence[Outcome], metric: Metric) -> dict[str, Interval]:
    """The metric by how much of the named evidence was read: none, some, all; empty where no question names any."""
    named = [(outcome.evidence_found, outcome) for outcome in outcomes if outcome.evidence_found is not None]
    return _by(((_portion(share), outcome) for share, outcome in named), metric, ("none", "some", "all").__getitem__)


def by_answer_read(outcomes: Sequence[Outcome], metric: Metric) -> dict[str, Interval]:
    """The metric by whether an accepted answer stood in a passage that was read; yes-or-no questions are left out."""
    asked = [(int(outcome.is_answer_read), outcome) for outcome in outcomes if outcome.is_answer_read is not None]
    return _by(asked, metric, ("not read", "read").__getitem__)


def _portion(share: float) -> int:
    return 0 if share == 0 else 2 if share == 1 else 1


def _searches_name(count: int) -> str:
    return f"{count} or more" if count == MANY_SEARCHES else str(count)


def _by(placed: Iterable[tuple[int, Outcome]], metric: Metric, name: Callable[[int], str]) -> dict[str, Interval]:
    scores: dict[int, list[float]] = {}
    for place, outcome in placed:
        scores.setdefault(place, []).append(outcome.score(metric))
    return {name(place): mean_interval(scores[place]) for place in sorted(scores)}
