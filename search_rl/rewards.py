"""Rewards: pure functions of a trajectory, weighted into one number.

Only what the policy wrote is scored: the answer is the one that ended the episode, so tags inside passages,
the prompt or an earlier turn earn nothing (invariant 6). A void trajectory scores 0.0 and must be left out by
whoever averages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from search_rl import answers
from search_rl.errors import ConfigError, unknown_name
from search_rl.types import Malformed, Reward, Trajectory

DEFAULT_WEIGHTS: Mapping[str, float] = {"exact_match": 1.0}


def exact_match(trajectory: Trajectory) -> float:
    """1.0 for the right answer: Search-R1's outcome reward (2503.09516)."""
    return answers.exact_match(trajectory.answer, trajectory.question.golden_answers)


def f1(trajectory: Trajectory) -> float:
    """The word overlap of the answer with the nearest accepted one."""
    return answers.f1(trajectory.answer, trajectory.question.golden_answers)


def format(trajectory: Trajectory) -> float:
    """1.0 when every turn held an action and the last one an answer, whatever it says."""
    is_well_formed = not any(isinstance(turn.action, Malformed) for turn in trajectory.turns)
    return float(is_well_formed and trajectory.answer is not None)


PARTS: Mapping[str, Callable[[Trajectory], float]] = {
    "exact_match": exact_match,
    "f1": f1,
    "format": format,
}


def score(trajectory: Trajectory, weights: Mapping[str, float] = DEFAULT_WEIGHTS) -> Reward:
    """The weighted sum of the parts named in `weights`, with the parts unweighted beside it.

    Raises ConfigError as `check_weights` does.
    """
    check_weights(weights)
    parts = {name: PARTS[name](trajectory) for name in weights}
    return Reward(sum(weights[name] * part for name, part in parts.items()), parts)


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise ConfigError for no weights, for an unknown part (naming the nearest), and for a weight that is no
    number.
    """
    if not weights:
        raise ConfigError(f"reward weights are empty: weigh at least one of {', '.join(PARTS)}")
    for name, weight in weights.items():
        if name not in PARTS:
            raise unknown_name("reward part", name, PARTS)
        if not math.isfinite(weight):
            raise ConfigError(f"reward weight {name}={weight} is not a finite number")
