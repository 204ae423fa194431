"""What an evaluation found, by set and kind of question: as values, as JSON and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from search_rl.evaluation.outcomes import ALL, Groups, Outcome, group, outcome_of
from search_rl.evaluation.runner import Evaluation
from search_rl.evaluation.statistics import (
    Interval,
    PairedTest,
    Weighting,
    average_interval,
    mean_interval,
    paired_test,
)
from search_rl.profiles import SEARCH_R1, Metric, Profile
from search_rl.types import Rollout, StopReason

if TYPE_CHECKING:
    from rich.table import Table

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
    def failed_share(self) -> float:
        """Share of questions that could not be asked properly."""
        return self.num_failed / self.num_questions

    @property
    def is_valid(self) -> bool:
        """False when more than one question in a thousand failed."""
        return self.failed_share <= MAX_FAILED_SHARE

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


@dataclass(frozen=True, slots=True)
class Stage:
    """An evaluation at one point of a run, named for people: "before", "sft", "after"."""

    name: str
    evaluation: Evaluation


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


def compare(
    first: Sequence[Rollout], second: Sequence[Rollout], *, profile: Profile = SEARCH_R1
) -> dict[str, PairedTest]:
    """The paired test of exact match on the questions that both results hold, by kind and for "all".

    One profile scores both, whatever scored them before. Raises ValueError when they share no question.
    """
    before, after = ([outcome_of(rollout.trajectory, profile) for rollout in part] for part in (first, second))
    pairs = paired(before, after)
    if not pairs:
        raise ValueError("no pairs: a comparison needs at least one question that both results hold")
    earlier = {outcome.question.key: outcome for outcome, _ in pairs}
    rows = group(outcome for _, outcome in pairs).rows
    return {
        name: paired_test(
            [earlier[outcome.question.key].scores.exact_match for outcome in members],
            [outcome.scores.exact_match for outcome in members],
        )
        for name, members in rows.items()
    }


def paired(first: Sequence[Outcome], second: Sequence[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """The outcomes of the questions that both hold, in the order of the second."""
    earlier = {outcome.question.key: outcome for outcome in first}
    return [(earlier[key], outcome) for outcome in second if (key := outcome.question.key) in earlier]


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


def summary_table(summary: Summary) -> Table:
    """One row a kind of question."""
    table = new_table(
        "questions", "n", "exact match", "95 %", "F1", "cover", "format", "searches", "tokens", "stopped by"
    )
    for kind, figures in sorted(summary.kinds.items(), key=lambda row: is_apart(row[0])):
        table.add_row(
            kind,
            str(figures.exact_match.n),
            f"{figures.exact_match.mean:.3f}",
            _bounds(figures.exact_match),
            f"{figures.f1.mean:.3f}",
            f"{figures.cover_exact_match.mean:.3f}",
            f"{figures.format_rate.mean:.1%}",
            f"{figures.searches_per_question:.2f}",
            f"{figures.sequence_tokens:.0f}",
            ", ".join(f"{reason} {count}" for reason, count in figures.stop_reasons.items() if count),
        )
    return table


def averages_table(summary: Summary) -> Table:
    """One row an average."""
    table = new_table("average", "n", "exact match", "95 %", "F1", "95 % of F1")
    for average in summary.averages:
        figures = (average.exact_match, average.f1)
        cells = [cell for it in figures for cell in (f"{it.mean:.3f}", _bounds(it))]
        table.add_row(average.name, str(average.exact_match.n), *cells)
    return table


def stages_table(stages: Sequence[Stage]) -> Table:
    """One column a stage: exact match by kind, then how the agent behaved and how long it took."""
    summaries = [summarise(stage.evaluation) for stage in stages]
    table = new_table("", *(stage.name for stage in stages))
    for kind in summaries[-1].kinds:
        table.add_row(f"exact match, {kind}", *(_match_cell(summary, kind) for summary in summaries))
    alls = [summary.kinds[ALL] for summary in summaries]
    table.add_section()
    table.add_row("searches a question", *(f"{figures.searches_per_question:.2f}" for figures in alls))
    table.add_row("format rate", *(f"{figures.format_rate.mean:.1%}" for figures in alls))
    table.add_row("failed", *(str(summary.num_failed) for summary in summaries))
    table.add_row("seconds", *(f"{summary.seconds:.0f}" for summary in summaries))
    return table


def paired_table(first: Stage, second: Stage) -> Table:
    """What changed from one stage to the next, by kind: won, lost, and whether chance explains it."""
    table = new_table(f"{first.name} → {second.name}", "n", "won", "lost", "difference", "95 %", "p (McNemar)")
    for kind, test in compare(
        first.evaluation.rollouts, second.evaluation.rollouts, profile=second.evaluation.profile
    ).items():
        table.add_row(
            kind,
            str(test.difference.n),
            str(test.wins),
            str(test.losses),
            f"{test.difference.mean:+.3f}",
            f"{test.difference.low:+.3f} to {test.difference.high:+.3f}",
            f"{test.p_value:.2g}",
        )
    return table


def new_table(*columns: str) -> Table:
    """An empty table: the first column to the left, figures to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(columns[0])
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


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


def _match_cell(summary: Summary, kind: str) -> str:
    figures = summary.kinds.get(kind)
    return "-" if figures is None else f"{figures.exact_match.mean:.3f} [{_bounds(figures.exact_match)}]"


def _bounds(interval: Interval) -> str:
    return f"{interval.low:.3f} to {interval.high:.3f}"
