"""A whole run in one document: three evaluations, what training logged, and what it all cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from search_rl.evaluation.outcomes import ALL
from search_rl.evaluation.report import Stage, Summary, compare, summarise

AGREEMENT = {"pearson": "agreement/pearson", "mean_abs_gap": "agreement/mean_abs_gap"}


def demo_summary(
    *,
    before: Stage,
    sft: Stage,
    after: Stage,
    metrics: Sequence[Mapping[str, Any]],
    stage_seconds: Mapping[str, float],
    stage_peak_bytes: Mapping[str, int],
) -> dict[str, Any]:
    """The JSON document of a run: `em_before`, `em_sft`, `em_after` hold mean, low, high, n, `by_kind`.

    `metrics` are the rows of metrics.jsonl, of which the first that has them gives `agreement` (None if none
    does); `stage_seconds` and `stage_peak_bytes` are by stage name. Raises ValueError for a stage without questions.
    """
    summaries = {
        "before": summarise(before.evaluation),
        "sft": summarise(sft.evaluation),
        "after": summarise(after.evaluation),
    }
    return {
        "is_valid": all(summary.is_valid for summary in summaries.values()),
        **{f"em_{name}": _exact_match(summary) for name, summary in summaries.items()},
        "format_rate": {name: summary.kinds[ALL].format_rate.mean for name, summary in summaries.items()},
        "searches_per_question": {
            name: summary.kinds[ALL].searches_per_question for name, summary in summaries.items()
        },
        "paired": {
            "before_to_sft": _paired(before, sft),
            "sft_to_after": _paired(sft, after),
        },
        "agreement": _agreement(metrics),
        "num_steps": len(metrics),
        "seconds": dict(stage_seconds),
        "peak_memory_gib": max(stage_peak_bytes.values(), default=0) / 1024**3,
        "stage_peak_memory_gib": {stage: peak / 1024**3 for stage, peak in stage_peak_bytes.items()},
    }


def _exact_match(summary: Summary) -> dict[str, Any]:
    by_kind = {kind: asdict(figures.exact_match) for kind, figures in summary.kinds.items() if kind != ALL}
    return {**asdict(summary.kinds[ALL].exact_match), "by_kind": by_kind}


def _paired(first: Stage, second: Stage) -> dict[str, Any]:
    tests = compare(first.evaluation.rollouts, second.evaluation.rollouts, profile=second.evaluation.profile)
    return {kind: asdict(test) for kind, test in tests.items()}


def _agreement(metrics: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    for row in metrics:
        if all(key in row for key in AGREEMENT.values()):
            return {name: row[key] for name, key in AGREEMENT.items()}
    return None
