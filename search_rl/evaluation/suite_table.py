"""One row a system: the table that a suite ends with, and the same figures as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from search_rl.evaluation.outcomes import ALL
from search_rl.evaluation.statistics import Interval
from search_rl.evaluation.suite import SystemResult
from search_rl.evaluation.tables import new_table

if TYPE_CHECKING:
    from rich.table import Table

_HEADINGS = ("EM [95 %]", "F1", "cover", "read", "if read", "if not", "search", "in", "out", "s", "fail")


def suite_table(results: Sequence[SystemResult]) -> Table:
    """Scores, retrieval and cost of each system. `read` is the share of questions whose evidence was read, all of it
    (an accepted answer where the set names no evidence), `if read` and `if not` exact match with and without it; `in`
    and `out` are tokens a question, `s` seconds of all. Below stands the preset of the budgets.
    """
    currency = next((cost.currency for result in results if (cost := result.measured.cost).currency), None)
    money = ("money_per_question", "money_per_right_answer") if currency else ()
    table = new_table("system", *_HEADINGS, *((f"{currency}/q", f"{currency}/right") if currency else ()))
    labels = dict.fromkeys(result.budgets for result in results if result.budgets)
    table.caption, table.caption_justify = f"budgets: {'; '.join(labels)}" if labels else None, "left"
    # Fourteen columns in 120 characters.
    table.padding = (0, 0, 0, 1)
    for column in table.columns:
        column.no_wrap = True
    for result in results:
        row = suite_row(result)
        table.add_row(
            result.name,
            f"{row['exact_match']:.3f} [{_short(row['exact_match_low'])}, {_short(row['exact_match_high'])}]",
            *(_decimal(row[name]) for name in ("f1", "cover_exact_match", "evidence_found_share")),
            *(_decimal(row[name]) for name in ("exact_match_found", "exact_match_not_found")),
            f"{row['searches_per_question']:.2f}",
            *(f"{row[name]:.0f}" for name in ("sent_tokens", "written_tokens", "wall_seconds")),
            str(row["num_failed"]),
            *(_money(row[name]) for name in money),
        )
    return table


def suite_row(result: SystemResult) -> dict[str, Any]:
    """The figures of one system over all questions, flat; tokens are a question's, seconds those of all."""
    scores = result.summary.kinds[ALL]
    retrieval, cost = result.measured.retrieval[ALL], result.measured.cost
    return {
        "system": result.name,
        "budgets": result.budgets,
        "is_valid": result.summary.is_valid,
        "num_questions": result.summary.num_questions,
        "num_failed": result.summary.num_failed,
        "exact_match": scores.exact_match.mean,
        "exact_match_low": scores.exact_match.low,
        "exact_match_high": scores.exact_match.high,
        "f1": scores.f1.mean,
        "cover_exact_match": scores.cover_exact_match.mean,
        "evidence_found_share": _mean(retrieval.evidence_found_share),
        "exact_match_found": _mean(retrieval.exact_match_found),
        "exact_match_not_found": _mean(retrieval.exact_match_not_found),
        "searches_per_question": retrieval.searches_per_question,
        "repeated_share": retrieval.repeated_share,
        "sent_tokens": cost.usage.sent_tokens / cost.num_questions,
        "written_tokens": cost.usage.written_tokens / cost.num_questions,
        "wall_seconds": cost.wall_seconds,
        "engine_seconds": cost.engine_seconds,
        "currency": cost.currency,
        "money_per_question": cost.money_per_question,
        "money_per_right_answer": cost.money_per_right_answer,
    }


def _mean(interval: Interval | None) -> float | None:
    return None if interval is None else interval.mean


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _short(value: float) -> str:
    """Two decimals, and no zero before the point."""
    return f"{value:.2f}".removeprefix("0")


def _money(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
