"""The files of a result folder that people read: report.md, report.html and row.csv; and a row a question."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from search_rl.errors import SearchRLError
from search_rl.evaluation.measured import Measured
from search_rl.evaluation.outcomes import ALL, Outcome, outcome_of, to_row
from search_rl.evaluation.page import page_of
from search_rl.evaluation.page_tables import stored_figures
from search_rl.evaluation.protocol import MeasuringProtocol
from search_rl.evaluation.result_folder import QUESTIONS, store
from search_rl.evaluation.results import Result
from search_rl.evaluation.runner import Evaluation
from search_rl.evaluation.summary import Summary

MARKDOWN = "report.md"
HTML = "report.html"
ROW = "row.csv"


def write_result(
    folder: Path,
    evaluation: Evaluation,
    protocol: MeasuringProtocol | None,
    measured: Measured,
    *,
    system: Mapping[str, Any],
) -> Summary:
    """The summary of a finished evaluation, written down as one: a row a question, the summary, then the report.

    `system` says who was measured.

    Raises SearchRLError where it cannot be written.
    """
    outcomes = tuple(outcome_of(rollout.trajectory, evaluation.profile) for rollout in evaluation.rollouts)
    result = Result(folder, outcomes, evaluation.seconds, evaluation.profile, protocol)
    summary = result.summary()
    try:
        write_questions(folder, outcomes)
        store(folder, summary, measured, system=system)
    except OSError as error:
        raise SearchRLError(f"cannot write the result in {folder}: {error.strerror}; make room and resume") from error
    write_report(result, summary)
    return summary


def write_questions(folder: Path, outcomes: Iterable[Outcome]) -> None:
    """Write a row a question, in order. `search-rl score` reads the file."""
    with (folder / QUESTIONS).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(to_row(outcome)) + "\n" for outcome in outcomes)


def write_report(result: Result, summary: Summary) -> None:
    """Write the three files into the result's folder. The HTML page needs no other file and no network.

    Raises SearchRLError where they cannot be written.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("search_rl.evaluation"),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = _markdown_cell
    page = page_of(result, summary)
    try:
        for name in (MARKDOWN, HTML):
            text = environment.get_template(f"{name}.j2").render(page=page)
            (result.folder / name).write_text(text, encoding="utf-8")
        _write_row(result.folder / ROW, table_row(result, summary))
    except OSError as error:
        raise SearchRLError(f"cannot write the report of {result.folder}: {error.strerror}") from error


def table_row(result: Result, summary: Summary) -> dict[str, Any]:
    """The result as one row for a table over many: who, under which rules, and the figures; shares are 0 to 1."""
    every = summary.kinds[ALL]
    system = result.protocol.system if result.protocol else {}
    row: dict[str, Any] = {
        "result": result.name,
        "is_valid": summary.is_valid,
        **{f"system/{name}": value for name, value in system.items()},
        "profile": summary.profile.name,
        "budgets": result.budgets or "",
        "rules_sha256": result.protocol.rules_sha256 if result.protocol else "",
        "questions": summary.num_questions,
        "failed": summary.num_failed,
        "seconds": round(summary.seconds, 3),
        "searches_per_question": every.searches_per_question,
        "policy_tokens": every.policy_tokens,
        "sequence_tokens": every.sequence_tokens,
        "format_rate": every.format_rate.mean,
    }
    for name, figures in summary.kinds.items():
        for metric in ("exact_match", "f1", "cover_exact_match"):
            interval = getattr(figures, metric)
            row |= {f"{metric}/{name}": interval.mean}
            row |= {f"{metric}/{name}/low": interval.low, f"{metric}/{name}/high": interval.high}
    for average in summary.averages:
        row |= {f"exact_match/{average.name}": average.exact_match.mean, f"f1/{average.name}": average.f1.mean}
    return row | stored_figures(result.folder)


def _write_row(path: Path, row: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        writer.writeheader()
        writer.writerow(row)


def _markdown_cell(text: str) -> str:
    """The text on one line, with nothing that ends a cell or becomes markup."""
    line = " ".join(str(text).split())
    return "".join(f"\\{character}" if character in "\\|`*_<[" else character for character in line)
