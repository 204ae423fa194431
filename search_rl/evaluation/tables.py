"""What an evaluation found, as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search_rl.evaluation.statistics import Interval
from search_rl.evaluation.summary import Summary, is_apart

if TYPE_CHECKING:
    from rich.table import Table


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
            bounds(figures.exact_match),
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
        cells = [cell for it in figures for cell in (f"{it.mean:.3f}", bounds(it))]
        table.add_row(average.name, str(average.exact_match.n), *cells)
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


def bounds(interval: Interval) -> str:
    """The interval in words."""
    return f"{interval.low:.3f} to {interval.high:.3f}"
