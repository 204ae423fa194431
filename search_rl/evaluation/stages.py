"""Evaluations at several points of one run, side by side, and whether chance explains what changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search_rl.evaluation.outcomes import ALL, group, outcome_of, paired
from search_rl.evaluation.runner import Evaluation
from search_rl.evaluation.statistics import PairedTest, paired_test
from search_rl.evaluation.summary import Summary, summarise
from search_rl.evaluation.tables import bounds, new_table
from search_rl.profiles import SEARCH_R1, Profile
from search_rl.types import Rollout

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Stage:
    """An evaluation at one point of a run, named for people: "before", "sft", "after"."""

    name: str
    evaluation: Evaluation


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


def _match_cell(summary: Summary, kind: str) -> str:
    figures = summary.kinds.get(kind)
    return "-" if figures is None else f"{figures.exact_match.mean:.3f} [{bounds(figures.exact_match)}]"
