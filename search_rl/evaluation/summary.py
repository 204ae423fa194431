"""What an evaluation found, by set and kind of question: as values and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from search_rl.evaluation.outcomes import ALL, Groups, Outcome, group, outcome_of
from search_rl.evaluation.runner import Evaluation
from search_rl.evaluation.statistics import Interval, Weighting, average_interval, mean_interval
from search_rl.profiles import Metric, Profile
from search_rl.types import StopReason

MAX_FAILED_SHARE = 0.001
APART = ("bamboogle",)
"""Data sets too small to rank on: Bamboogle's 125 questions leave a half-width of .09. Averages are given without them
first.
"""
_AVERAGED: tuple[Metric, Metric] = ("exact_match", "f1")


@dataclass(frozen=True, slots=True)
class KindSummary:
    """Figures over the questions of one kind; failed ones count as wrong and badly formed.

    `format_rate` is the share of episodes that were answered and had no malformed turn. Tokens and seconds
    are means per question; `episode_seconds` counts waiting for a place in a batch too.
    """

    exact_match: Interval
    f1: Interval
    cover_exact_match: Interval
    token_cover_exact_match: Interval
    format_rate: Interval
    searches_per_question: float
    policy_tokens: float
    sequence_tokens: float
    episode_seconds: float
    stop_reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Average:
    """Figures over `strata`: each counts the same in a macro average, each question in a micro average.

    The intervals come from a bootstrap inside each stratum.
    """

    weighting: Weighting
    strata: tuple[str, ...]
    exact_match: Interval
    f1: Interval

    @property
    def name(self) -> str:
        """The average in words."""
        return average_name(self.weighting, self.strata)


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole evaluation; `kinds` begins with "all", then come data sets, or kinds of question where there is one set.

    `averages` are over those, none where there is one.
    """

    num_questions: int
    num_failed: int
    seconds: float
    kinds: Mapping[str, KindSummary]
    profile: Profile
    averages: tuple[Average, ...] = ()

    @property
    def is_valid(self) -> bool:
        """False when more than one question in a thousand failed."""
        return is_quotable(self.num_failed, self.num_questions)

    @property
    def headline(self) -> str:
        """One line: whether the figures may be quoted, and the one that the profile's source reports."""
        metric = self.profile.headline
        figure: Interval = getattr(self.kinds[ALL], metric)
        figures = f"{metric_name(metric)} {figure}, {figure.n} questions, profile {self.profile.name}"
        if self.is_valid:
            failed = f"{self.num_failed} of {self.num_questions} questions failed and count as wrong"
            return f"{failed}: {figures}" if self.num_failed else figures
        return (
            f"NOT VALID: {self.num_failed} of {self.num_questions} questions failed (over "
            f"{MAX_FAILED_SHARE:.1%}) and count as wrong: {figures}"
        )


def is_quotable(num_failed: int, num: int) -> bool:
    """True when at most one in a thousand failed."""
    return num_failed <= MAX_FAILED_SHARE * num


def metric_name(metric: Metric) -> str:
    """The metric in words."""
    return metric.replace("_", " ") if metric != "f1" else "F1"


def summarise(evaluation: Evaluation) -> Summary:
    """The figures of an evaluation. Raises ValueError for one without questions."""
    return summarise_outcomes(
        [outcome_of(rollout.trajectory, evaluation.profile) for rollout in evaluation.rollouts],
        seconds=evaluation.seconds,
        profile=evaluation.profile,
    )


def summarise_outcomes(outcomes: Sequence[Outcome], *, seconds: float, profile: Profile) -> Summary:
    """The figures of outcomes that the profile scored. Raises ValueError for none."""
    if not outcomes:
        raise ValueError("no questions: a summary needs at least one")
    groups = group(outcomes)
    return Summary(
        num_questions=len(outcomes),
        num_failed=sum(outcome.is_failed for outcome in outcomes),
        seconds=seconds,
        kinds={name: _summarise_kind(members) for name, members in groups.rows.items()},
        profile=profile,
        averages=tuple(
            _average(weighting, {name: groups.strata[name] for name in names})
            for weighting, names in average_choices(groups)
        ),
    )


def is_apart(name: str) -> bool:
    """True for the row of a set that stands apart, or of one of its kinds."""
    return name.split(": ")[0] in APART


def average_choices(groups: Groups[Outcome]) -> list[tuple[Weighting, tuple[str, ...]]]:
    """Macro and micro averages by their strata, first without those that stand apart; none over a single one."""
    every = tuple(groups.strata)
    large = tuple(name for name in every if name not in APART)
    choices = [names for names in dict.fromkeys((large, every)) if len(names) > 1]
    return [(weighting, names) for names in choices for weighting in ("macro", "micro")]


def average_name(weighting: Weighting, strata: Sequence[str]) -> str:
    """An average in words."""
    held = [name for name in APART if name in strata]
    return f"{weighting} over {len(strata)}{f', with {held[0]}' if held else ''}"


def summary_to_json(summary: Summary) -> dict[str, Any]:
    """The JSON form; whether the figures are valid comes first."""
    return {
        "is_valid": summary.is_valid,
        "headline": summary.headline,
        "profile": summary.profile.name,
        "num_questions": summary.num_questions,
        "num_failed": summary.num_failed,
        "seconds": summary.seconds,
        "kinds": {kind: asdict(figures) for kind, figures in summary.kinds.items()},
        "averages": {average.name: asdict(average) for average in summary.averages},
    }


def _average(weighting: Weighting, strata: Mapping[str, Sequence[Outcome]]) -> Average:
    exact_match, f1 = (
        average_interval([[outcome.score(metric) for outcome in members] for members in strata.values()], weighting)
        for metric in _AVERAGED
    )
    return Average(weighting, tuple(strata), exact_match, f1)


def _summarise_kind(outcomes: Sequence[Outcome]) -> KindSummary:
    reasons = Counter(outcome.stop_reason for outcome in outcomes)
    return KindSummary(
        exact_match=mean_interval([outcome.scores.exact_match for outcome in outcomes]),
        f1=mean_interval([outcome.scores.f1 for outcome in outcomes]),
        cover_exact_match=mean_interval([outcome.scores.cover_exact_match for outcome in outcomes]),
        token_cover_exact_match=mean_interval([outcome.scores.token_cover_exact_match for outcome in outcomes]),
        format_rate=mean_interval([float(outcome.is_well_formed) for outcome in outcomes]),
        searches_per_question=fmean(outcome.num_searches for outcome in outcomes),
        policy_tokens=fmean(outcome.policy_tokens for outcome in outcomes),
        sequence_tokens=fmean(outcome.sequence_tokens for outcome in outcomes),
        episode_seconds=fmean(outcome.episode_seconds for outcome in outcomes),
        stop_reasons={str(reason): reasons[reason] for reason in StopReason},
    )
