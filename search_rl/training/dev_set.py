"""How well a step answers the dev questions, and the best step so far, whose export is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from search_rl import rewards
from search_rl.errors import TrainingError
from search_rl.evaluation.statistics import share_interval
from search_rl.training.run_folder import RunFolder
from search_rl.types import Rollout

RECORD = "best.json"


@dataclass(frozen=True, slots=True)
class DevResult:
    """Exact match over `n` dev questions after `step`, with the bounds of its 95 % interval (Wilson)."""

    step: int
    exact_match: float
    low: float
    high: float
    n: int


def dev_scores(rollout: Rollout) -> dict[str, float]:
    """What verl's validation carries of one dev question. A void episode is a wrong answer there (invariant 9)."""
    is_right = not rollout.is_void and rewards.exact_match(rollout.trajectory) == 1.0
    return {"exact_match": float(is_right), "void": float(rollout.is_void)}


def dev_result(step: int, num_questions: int, scores: Mapping[str, Sequence[float | None]]) -> DevResult:
    """The result over all questions asked; `scores` are columns of `dev_scores`, which verl fills with None.

    Raises TrainingError where an episode left no scores: it raised, and what the others say is no result.
    """
    right = [value for value in scores.get("exact_match", ()) if value is not None]
    if len(right) < num_questions:
        raise TrainingError(f"{num_questions - len(right)} of {num_questions} dev questions could not be asked")
    interval = share_interval(round(sum(right)), num_questions)
    return DevResult(step, interval.mean, interval.low, interval.high, num_questions)


def dev_metrics(
    result: DevResult, *, best: DevResult, scores: Mapping[str, Sequence[float | None]]
) -> dict[str, float]:
    """The figures of a step under their metric names; `scores` as for `dev_result`."""
    return {
        "dev/exact_match": result.exact_match,
        "dev/exact_match_low": result.low,
        "dev/exact_match_high": result.high,
        "dev/void_share": sum(value or 0.0 for value in scores["void"]) / result.n,
        "dev/best_step": best.step,
    }


def best_result(folder: RunFolder) -> DevResult | None:
    """The result behind the run's `best` folder, None before the first."""
    path = folder.root / RECORD
    return DevResult(**json.loads(path.read_text())) if path.exists() else None


def keep_if_best(folder: RunFolder, result: DevResult) -> DevResult:
    """The best result, this one included. A tie goes to the earlier step: it was reached with less training. A result
    over another number of questions is no rival."""
    best = best_result(folder)
    if best is not None and best.n == result.n and result.exact_match <= best.exact_match:
        return best
    folder.keep_best(result.step)
    folder.write_json(RECORD, asdict(result))
    return result
