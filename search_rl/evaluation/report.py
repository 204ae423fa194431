"""What an evaluation found, by kind of question: as values, as JSON and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from search_rl import rewards
from search_rl.evaluation.runner import Evaluation, is_failed
from search_rl.evaluation.statistics import Interval, PairedTest, mean_interval, paired_test
from search_rl.profiles import SEARCH_R1, Metric, Profile
from search_rl.types import Question, Rollout, StopReason, Trajectory

if TYPE_CHECKING:
    from rich.table import Table

ALL = "all"
MAX_FAILED_SHARE = 0.001
_KIND_ORDER = ("one_hop", "two_hop", "comparison")


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
class Summary:
    """A whole evaluation; `kinds` begins with "all"."""

    num_questions: int
    num_failed: int
    seconds: float
    kinds: Mapping[str, KindSummary]
    profile: Profile

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


def kind_of(question: Question) -> str:
    """The group that a question is reported in: its kind, or its data set where it has none."""
    return question.kind or question.dataset or "other"


def kinds_of(rollouts: Iterable[Rollout]) -> list[str]:
    """The kinds present, easiest first, unknown ones last by name."""
    present = {kind_of(rollout.trajectory.question) for rollout in rollouts}
    return [kind for kind in _KIND_ORDER if kind in present] + sorted(present - set(_KIND_ORDER))


def summarise(evaluation: Evaluation) -> Summary:
    """The figures of an evaluation. Raises ValueError for one without questions."""
    trajectories = [rollout.trajectory for rollout in evaluation.rollouts]
    groups = {ALL: trajectories} | {
        kind: [trajectory for trajectory in trajectories if kind_of(trajectory.question) == kind]
        for kind in kinds_of(evaluation.rollouts)
    }
    return Summary(
        num_questions=len(trajectories),
        num_failed=sum(map(is_failed, trajectories)),
        seconds=evaluation.seconds,
        kinds={kind: _summarise_kind(members, evaluation.profile) for kind, members in groups.items()},
        profile=evaluation.profile,
    )


def compare(
    first: Sequence[Rollout], second: Sequence[Rollout], *, profile: Profile = SEARCH_R1
) -> dict[str, PairedTest]:
    """The paired test of exact match on the questions that both results hold, by kind and for "all".

    One profile scores both, whatever scored them before. Raises ValueError when they share no question.
    """
    before = {rollout.trajectory.question.key: rollout for rollout in first}
    pairs = [(before[key], rollout) for rollout in second if (key := rollout.trajectory.question.key) in before]
    groups = {ALL: pairs} | {
        kind: [pair for pair in pairs if kind_of(pair[1].trajectory.question) == kind]
        for kind in kinds_of(after for _, after in pairs)
    }
    return {kind: _paired_test(members, profile) for kind, members in groups.items()}


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
    }


def summary_table(summary: Summary) -> Table:
    """One row a kind of question."""
    table = new_table(
        "questions", "n", "exact match", "95 %", "F1", "cover", "format", "searches", "tokens", "stopped by"
    )
    for kind, figures in summary.kinds.items():
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


def _summarise_kind(trajectories: Sequence[Trajectory], profile: Profile) -> KindSummary:
    scores = [profile.scores(trajectory.answer, trajectory.question.golden_answers) for trajectory in trajectories]
    reasons = Counter(str(trajectory.stop_reason) for trajectory in trajectories)
    return KindSummary(
        exact_match=mean_interval([row.exact_match for row in scores]),
        f1=mean_interval([row.f1 for row in scores]),
        cover_exact_match=mean_interval([row.cover_exact_match for row in scores]),
        token_cover_exact_match=mean_interval([row.token_cover_exact_match for row in scores]),
        format_rate=mean_interval([rewards.format(trajectory) for trajectory in trajectories]),
        searches_per_question=fmean(trajectory.num_searches for trajectory in trajectories),
        policy_tokens=fmean(sum(trajectory.response_mask) for trajectory in trajectories),
        sequence_tokens=fmean(len(t.prompt.token_ids) + len(t.response_ids) for t in trajectories),
        episode_seconds=fmean(_seconds(trajectory) for trajectory in trajectories),
        stop_reasons={reason: reasons[reason] for reason in StopReason},
    )


def _seconds(trajectory: Trajectory) -> float:
    return sum(turn.generate_seconds + turn.search_seconds for turn in trajectory.turns)


def _paired_test(pairs: Sequence[tuple[Rollout, Rollout]], profile: Profile) -> PairedTest:
    episodes = [[rollout.trajectory for rollout in pair] for pair in pairs]
    scores = [[profile.exact_match(it.answer, it.question.golden_answers) for it in pair] for pair in episodes]
    return paired_test([before for before, _ in scores], [after for _, after in scores])


def _match_cell(summary: Summary, kind: str) -> str:
    figures = summary.kinds.get(kind)
    return "-" if figures is None else f"{figures.exact_match.mean:.3f} [{_bounds(figures.exact_match)}]"


def _bounds(interval: Interval) -> str:
    return f"{interval.low:.3f} to {interval.high:.3f}"
