"""The table of a page, and those of what a result folder holds beside the scores: retrieval, cost, ceiling, audit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_rl.errors import DataError
from search_rl.evaluation.outcomes import ALL
from search_rl.evaluation.result_folder import AUDIT, RETRIEVER, SUMMARY

Cells = tuple[str, ...]
_SHARES = ("no_search_share", "repeated_share", "empty_share")
_MEANS = ("evidence_recall", "evidence_found_share", "exact_match_found", "exact_match_not_found")
_MONEY = ("money_per_question", "money_per_right_answer")
_BY_SEARCH = ("evidence_recall", "evidence_recall_so_far")


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of texts; the first column names the rows. One without rows is not shown."""

    title: str
    headings: Cells
    rows: tuple[Cells, ...]
    note: str = ""


def stored_tables(folder: Path) -> tuple[PageTable, ...]:
    """The tables of what lies in the folder; the retriever's ceiling of a suite lies one folder above."""
    summary = _document(folder / SUMMARY)
    ceiling = _document(folder / RETRIEVER) or _document(folder.parent / RETRIEVER)
    retrieval = summary.get("retrieval", {})
    return (
        _retrieval(retrieval),
        _by_search(retrieval.get(ALL, {}).get("by_search", ())),
        _ceiling(ceiling.get("ceiling", {})),
        _cost(summary.get("cost", {})),
        _audit(_document(folder / AUDIT).get("findings", ())),
    )


def stored_figures(folder: Path) -> dict[str, Any]:
    """What retrieval and cost came to over all questions, flat; tokens and searches are a question's."""
    summary = _document(folder / SUMMARY)
    figures: dict[str, Any] = {}
    if retrieval := summary.get("retrieval", {}).get(ALL):
        figures |= {name: None if retrieval[name] is None else retrieval[name]["mean"] for name in _MEANS}
    if cost := summary.get("cost"):
        figures |= {name: cost["usage"][name] / cost["num_questions"] for name in ("sent_tokens", "written_tokens")}
        figures |= {name: cost[name] for name in ("wall_seconds", "engine_seconds", "currency", *_MONEY)}
    return figures


def _retrieval(rows: Mapping[str, Any]) -> PageTable:
    depths = list(rows[ALL]["answer_hit_at"]) if rows else []
    headings = (
        "",
        *(f"answer in best {k}" for k in depths),
        "evidence recall",
        "evidence found",
        "EM found",
        "EM not found",
        "no search",
        "repeated",
        "empty",
        "median s",
    )
    cells = tuple(
        (
            name,
            *(_mean(row["answer_hit_at"].get(k)) for k in depths),
            *(_mean(row[figure]) for figure in _MEANS),
            *(f"{row[share]:.3f}" for share in _SHARES),
            "-" if row["latency"] is None else f"{row['latency']['median_seconds']:.3f}",
        )
        for name, row in rows.items()
    )
    return PageTable("Retrieval", headings, cells, "Evidence is found when all of it was read; see README, Retrieval.")


def _by_search(searches: Sequence[Mapping[str, Any]]) -> PageTable:
    depths = list(searches[0].get("answer_hit_at", ())) if searches else []
    cells = tuple(
        (
            str(row["number"]),
            str(row["num_episodes"]),
            *(_mean(row["answer_hit_at"].get(k)) for k in depths),
            *(_mean(row[figure]) for figure in _BY_SEARCH),
        )
        for row in searches
    )
    headings = ("", "n", *(f"answer in best {k}" for k in depths), "evidence recall", "recall so far")
    return PageTable("Search by search", headings, cells, "Of each search alone; the last column of all up to it.")


def _ceiling(rows: Mapping[str, Any]) -> PageTable:
    depths = list(rows[ALL]["answer_hit_at"]) if rows else []
    cells = tuple(
        (f"{name}, {words}", *(_mean(row[figure].get(k)) for k in depths))
        for name, row in rows.items()
        for words, figure in (("answer", "answer_hit_at"), ("all evidence", "evidence_complete_at"))
    )
    return PageTable(
        "Ceiling of the retriever",
        ("within best", *depths),
        cells,
        "What one search for the question itself holds. An agent can pass it with better queries.",
    )


def _cost(cost: Mapping[str, Any]) -> PageTable:
    if not cost:
        return PageTable("Cost", (), ())
    num_questions, usage = cost["num_questions"], cost["usage"]
    rows = [
        ("tokens sent a question", f"{usage['sent_tokens'] / num_questions:.1f}"),
        ("of these sent before", f"{usage['repeated_tokens'] / num_questions:.1f}"),
        ("tokens written a question", f"{usage['written_tokens'] / num_questions:.1f}"),
        ("searches", str(usage["num_searches"])),
        ("wall seconds", f"{cost['wall_seconds']:.1f}"),
        ("engine seconds", f"{cost['engine_seconds']:.1f}"),
    ]
    for name in _MONEY:
        if cost[name] is not None:
            rows.append((f"{cost['currency']} {name.removeprefix('money_').replace('_', ' ')}", f"{cost[name]:.3g}"))
    return PageTable("Cost", ("", "value"), tuple(rows))


def _audit(findings: Sequence[Mapping[str, Any]]) -> PageTable:
    cells = tuple(
        (
            found["check"],
            str(found["num_hits"]),
            str(found["num_cases"]),
            f"{found['threshold']:.3f}",
            "FLAGGED" if found["is_flagged"] else "",
            found["meaning"],
        )
        for found in findings
    )
    return PageTable("Audit", ("", "hits", "of", "threshold", "flag", "meaning"), cells)


def _mean(interval: Mapping[str, Any] | None) -> str:
    return "-" if interval is None else f"{interval['mean']:.3f}"


def _document(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty where there is none. Raises DataError for anything else."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}; remove it or run the command that writes it") from error
    if not isinstance(document, dict):
        raise DataError(f"{path} holds a {type(document).__name__}, not an object")
    return document
