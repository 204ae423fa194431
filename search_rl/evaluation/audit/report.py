"""All checks of one result, as values, as JSON and as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_rl.agent.protocols import protocol_named
from search_rl.errors import ConfigError, SearchRLError
from search_rl.evaluation.audit import habits, leakage
from search_rl.evaluation.audit.findings import Finding
from search_rl.evaluation.audit.habits import episode_of
from search_rl.evaluation.result_folder import AUDIT
from search_rl.evaluation.results import Result, load_result_with
from search_rl.evaluation.tables import new_table
from search_rl.types import Question

if TYPE_CHECKING:
    from rich.table import Table

_HABITS = (
    habits.no_answer,
    habits.answer_avoidance,
    habits.answer_stuffing,
    habits.yes_no_prior,
    habits.yes_no_elsewhere,
    habits.echoed_question,
    habits.search_avoidance,
    habits.same_query,
    habits.stuck_query,
    habits.tagged_passages,
    habits.obeyed_injection,
)


@dataclass(frozen=True, slots=True)
class Audit:
    """What the checks found; `left_out` names those that lacked what they need, and what that is."""

    name: str
    findings: tuple[Finding, ...]
    left_out: tuple[str, ...]

    @property
    def flagged(self) -> tuple[Finding, ...]:
        """Findings over their threshold."""
        return tuple(finding for finding in self.findings if finding.is_flagged)

    @property
    def headline(self) -> str:
        """One line: what to look at first."""
        names = ", ".join(finding.check for finding in self.flagged)
        return f"{len(self.flagged)} of {len(self.findings)} checks flagged{f': {names}' if names else ''}"


def audit_folder(folder: Path, *, train: Sequence[Question] | None = None, closed_book: Result | None = None) -> Audit:
    """The audit of the result in a folder. Overlap needs the training questions, closed-book shares a result of a
    system that read nothing.

    Raises DataError where no evaluation was finished, ConfigError for a closed-book result that read passages.
    """
    result, episodes = load_result_with(folder, episode_of)
    questions = [outcome.question for outcome in result.outcomes]
    findings = [leakage.answer_in_question(questions), leakage.empty_golds(questions)]
    left_out = []
    if train is None:
        left_out.append("question_overlap and answer_overlap: give --train")
    else:
        findings += [leakage.question_overlap(questions, train), leakage.answer_overlap(questions, train)]
    if closed_book is None:
        left_out.append("closed_book_solvable and right_without_reading: give --direct")
    else:
        findings += _closed_book_findings(result, closed_book)
    findings += [check(episodes) for check in _HABITS]
    findings.append(habits.copied_example(episodes, _instructions(result)))
    return Audit(result.name, tuple(findings), tuple(left_out))


def audit_to_json(audit: Audit) -> dict[str, Any]:
    """The JSON form; the headline comes first."""
    return {
        "headline": audit.headline,
        "result": audit.name,
        "left_out": list(audit.left_out),
        "findings": [
            {**asdict(finding), "is_flagged": finding.is_flagged, "share": finding.share and asdict(finding.share)}
            for finding in audit.findings
        ],
    }


def write_audit(folder: Path, audit: Audit) -> None:
    """Keep the audit in the result folder, where the report finds it. Raises SearchRLError where it cannot be."""
    try:
        (folder / AUDIT).write_text(json.dumps(audit_to_json(audit), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise SearchRLError(f"cannot write {folder / AUDIT}: {error.strerror}") from error


def audit_table(audit: Audit) -> Table:
    """One row a check, flagged ones marked."""
    table = new_table("check", "hits", "of", "share", "95 %", "threshold", "", "meaning")
    table.columns[-1].justify = "left"
    for finding in audit.findings:
        share = finding.share
        cells = ("-", "") if share is None else (f"{share.mean:.3f}", f"{share.low:.3f} to {share.high:.3f}")
        mark = "FLAGGED" if finding.is_flagged else ""
        counts = (str(finding.num_hits), str(finding.num_cases))
        table.add_row(finding.check, *counts, *cells, f"{finding.threshold:.3f}", mark, finding.meaning)
    return table


def example_lines(audit: Audit) -> list[str]:
    """Some cases of each flagged check."""
    return [f"{finding.check}: {example}" for finding in audit.flagged for example in finding.examples]


def _closed_book_findings(result: Result, closed_book: Result) -> list[Finding]:
    if any(outcome.num_searches or outcome.is_answer_read for outcome in closed_book.outcomes):
        raise ConfigError(f"{closed_book.folder} is no closed-book result: its episodes read passages")
    by_key = {outcome.question.key: outcome for outcome in closed_book.outcomes}
    if not any(outcome.question.key in by_key for outcome in result.outcomes):
        raise ConfigError(f"{closed_book.folder} and {result.folder} share no question")
    checks = (leakage.closed_book_solvable, leakage.right_without_reading)
    return [check(result.outcomes, by_key) for check in checks]


def _instructions(result: Result) -> str:
    """The prompt that the result was measured with: Search-R1's for results from before protocol files."""
    prompt = result.protocol.rules.get("prompt", {}) if result.protocol else {}
    return str(prompt.get("text") or protocol_named("search_r1").instructions)
