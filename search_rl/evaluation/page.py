"""A result as a page: tables, pictures and some questions, from which report.md and report.html are written."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_rl.evaluation import breakdowns
from search_rl.evaluation.outcomes import ALL, Outcome
from search_rl.evaluation.page_tables import Cells, PageTable, stored_tables
from search_rl.evaluation.plots import count_bars, interval_bars
from search_rl.evaluation.protocol import flat
from search_rl.evaluation.results import Result
from search_rl.evaluation.statistics import Interval
from search_rl.evaluation.summary import KindSummary, Summary, is_apart, metric_name

NUM_FAILED_SHOWN = 50
NUM_WRONG_SHOWN = 20
NUM_RIGHT_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture; `svg` is a whole SVG document."""

    title: str
    svg: str

    @property
    def data_url(self) -> str:
        """The picture as the source of an image, so that a page needs no second file."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"


@dataclass(frozen=True, slots=True)
class Page:
    """What a reader sees, in this order; `headline` says first whether the figures may be quoted."""

    headline: str
    title: str
    budgets: str | None
    is_valid: bool
    tables: tuple[PageTable, ...]
    plots: tuple[Plot, ...]
    questions: tuple[Outcome, ...]


def page_of(result: Result, summary: Summary) -> Page:
    """The page of a result. What was not measured has no table and no picture."""
    outcomes, metric = result.outcomes, summary.profile.headline
    parts = {
        "number of searches": breakdowns.by_searches(outcomes, metric),
        "share of the evidence that was read": breakdowns.by_evidence(outcomes, metric),
        "accepted answer in a passage that was read": breakdowns.by_answer_read(outcomes, metric),
    }
    tables = (
        _figures("Data sets and kinds", {name: row for name, row in summary.kinds.items() if not is_apart(name)}),
        _figures(
            "Apart",
            {name: row for name, row in summary.kinds.items() if is_apart(name)},
            note="Too small to rank on.",
        ),
        _averages(summary),
        _stop_reasons(summary),
        *(_intervals(f"{metric_name(metric).capitalize()} by {name}", part) for name, part in parts.items()),
        *stored_tables(result.folder),
        _failed(outcomes),
        *_protocol(result),
    )
    return Page(
        headline=summary.headline,
        title=result.name,
        budgets=result.budgets,
        is_valid=summary.is_valid,
        tables=tuple(table for table in tables if table.rows),
        plots=_plots(summary, parts),
        questions=_some_questions(outcomes),
    )


def _figures(title: str, rows: Mapping[str, KindSummary], note: str = "") -> PageTable:
    headings = ("", "n", "exact match", "95 %", "F1", "95 %", "cover", "format", "searches", "tokens", "seconds")
    return PageTable(
        title,
        headings,
        tuple(
            (
                name,
                str(row.exact_match.n),
                *_cells(row.exact_match),
                *_cells(row.f1),
                f"{row.cover_exact_match.mean:.3f}",
                f"{row.format_rate.mean:.3f}",
                f"{row.searches_per_question:.2f}",
                f"{row.sequence_tokens:.0f}",
                f"{row.episode_seconds:.2f}",
            )
            for name, row in rows.items()
        ),
        note or "Searches, tokens and seconds are means a question; seconds count waiting for a place in a batch too.",
    )


def _averages(summary: Summary) -> PageTable:
    return PageTable(
        "Averages",
        ("", "n", "exact match", "95 %", "F1", "95 %"),
        tuple(
            (average.name, str(average.exact_match.n), *_cells(average.exact_match), *_cells(average.f1))
            for average in summary.averages
        ),
        "Macro: each set counts the same. Micro: each question does. Intervals: a bootstrap inside each set.",
    )


def _stop_reasons(summary: Summary) -> PageTable:
    reasons = [reason for reason, count in summary.kinds[ALL].stop_reasons.items() if count]
    return PageTable(
        "Why episodes ended",
        ("", *reasons),
        tuple((name, *(str(row.stop_reasons[reason]) for reason in reasons)) for name, row in summary.kinds.items()),
    )


def _intervals(title: str, rows: Mapping[str, Interval]) -> PageTable:
    cells = tuple((name, str(interval.n), *_cells(interval)) for name, interval in rows.items())
    return PageTable(title, ("", "n", "mean", "95 %"), cells)


def _failed(outcomes: Sequence[Outcome]) -> PageTable:
    failed = [outcome for outcome in outcomes if outcome.is_failed]
    rows = tuple((it.question.key, str(it.stop_reason), it.question.text) for it in failed[:NUM_FAILED_SHOWN])
    note = f"The first {NUM_FAILED_SHOWN} of {len(failed)}." if len(failed) > NUM_FAILED_SHOWN else ""
    return PageTable("Failed questions, counted as wrong", ("", "stopped by", "question"), rows, note)


def _protocol(result: Result) -> Iterable[PageTable]:
    if result.protocol is None:
        return
    yield _values("System", result.protocol.system)
    yield _values("Protocol", result.protocol.rules, f"Rules sha256 {result.protocol.rules_sha256}.")
    yield _values("Circumstances", result.protocol.circumstances)


def _values(title: str, values: Mapping[str, Any], note: str = "") -> PageTable:
    rows = tuple((name, value if isinstance(value, str) else json.dumps(value)) for name, value in flat(values).items())
    return PageTable(title, ("", "value"), rows, note)


def _plots(summary: Summary, parts: Mapping[str, Mapping[str, Interval]]) -> tuple[Plot, ...]:
    metric = summary.profile.headline
    name = metric_name(metric)
    series = {
        name: {row: getattr(figures, metric) for row, figures in summary.kinds.items()},
        "F1": {row: figures.f1 for row, figures in summary.kinds.items()},
    }
    reasons = {reason: count for reason, count in summary.kinds[ALL].stop_reasons.items() if count}
    return (
        Plot(f"{name.capitalize()} and F1 with 95 % intervals", interval_bars(series)),
        *(
            Plot(f"{name.capitalize()} by {part}", interval_bars({name: intervals}))
            for part, intervals in parts.items()
            if intervals
        ),
        Plot("Why episodes ended", count_bars(reasons)),
    )


def _some_questions(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Wrong ones first, which teach more; of each the first in the result's order."""
    wrong = [outcome for outcome in outcomes if outcome.scores.exact_match == 0.0]
    right = [outcome for outcome in outcomes if outcome.scores.exact_match == 1.0]
    return (*wrong[:NUM_WRONG_SHOWN], *right[:NUM_RIGHT_SHOWN])


def _cells(interval: Interval) -> Cells:
    return f"{interval.mean:.3f}", f"{interval.low:.3f} to {interval.high:.3f}"
