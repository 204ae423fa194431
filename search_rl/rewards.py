"""Rewards: pure functions of a trajectory, weighted into one number.

A part is a name of PARTS, or `module:function` for one of your own. Penalties are parts too: weigh them below zero.

Only what the policy wrote is scored: the answer is the one that ended the episode, so tags inside passages,
the prompt or an earlier turn earn nothing (invariant 6). A void trajectory scores 0.0 and must be left out by
whoever averages.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from functools import cache

from search_rl import answers
from search_rl.errors import ConfigError, RewardError, unknown_name
from search_rl.evidence import evidence_among, evidence_of
from search_rl.types import Malformed, Reward, Search, StopReason, Trajectory

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


def cover_exact_match(trajectory: Trajectory) -> float:
    """1.0 when the answer holds an accepted one; an answer that lists everything earns it too."""
    return answers.cover_exact_match(trajectory.answer, trajectory.question.golden_answers)


def evidence_hit(trajectory: Trajectory) -> float:
    """The share of the question's evidence among all that was read; 0.0 when the question names none."""
    question = trajectory.question
    wanted = evidence_of(question)
    return len(evidence_among(question, trajectory.passages_read)) / len(wanted) if wanted else 0.0


def no_answer(trajectory: Trajectory) -> float:
    """1.0 when the episode ended without an answer."""
    return float(trajectory.answer is None)


def no_search(trajectory: Trajectory) -> float:
    """1.0 when nothing was searched: the answer, if any, is from memory."""
    return float(not trajectory.results)


def repeated_query(trajectory: Trajectory) -> float:
    """The share of queries that the episode had asked before, in the same words."""
    queries = [query for turn in trajectory.turns if isinstance(turn.action, Search) for query in turn.action.queries]
    return 1.0 - len(set(queries)) / len(queries) if queries else 0.0


def over_long(trajectory: Trajectory) -> float:
    """1.0 when a token budget ended the episode."""
    return float(trajectory.stop_reason is StopReason.MAX_TOKENS)


PARTS: Mapping[str, Callable[[Trajectory], float]] = {
    part.__name__: part
    for part in (
        exact_match,
        f1,
        cover_exact_match,
        format,
        evidence_hit,
        no_answer,
        no_search,
        repeated_query,
        over_long,
    )
}


def score(trajectory: Trajectory, weights: Mapping[str, float] = DEFAULT_WEIGHTS) -> Reward:
    """The weighted sum of the parts named in `weights`, with the parts unweighted beside it.

    Raises ConfigError as `check_weights` does, RewardError when a user's part raises or gives no finite number.
    """
    check_weights(weights)
    parts = {name: _value(name, trajectory) for name in weights}
    return Reward(sum(weights[name] * part for name, part in parts.items()), parts)


def score_or_void(trajectory: Trajectory, weights: Mapping[str, float] = DEFAULT_WEIGHTS) -> Reward:
    """The score, or a reward whose `failure` names the user's part that failed: such an episode is void.

    A trajectory that is void already is not scored. Raises ConfigError as `check_weights` does.
    """
    if trajectory.is_void:
        return Reward(0.0)
    try:
        return score(trajectory, weights)
    except RewardError as error:
        return Reward(0.0, failure=str(error))


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise ConfigError for no weights, for an unknown part (naming the nearest), and for a weight that is no
    number.
    """
    if not weights:
        raise ConfigError(f"reward weights are empty: weigh at least one of {', '.join(PARTS)}")
    for name, weight in weights.items():
        _part(name)
        if not math.isfinite(weight):
            raise ConfigError(f"reward weight {name}={weight} is not a finite number")


@cache
def _part(name: str) -> Callable[[Trajectory], float]:
    """The function behind a name."""
    if ":" not in name:
        if name not in PARTS:
            raise unknown_name("reward part", name, PARTS)
        return PARTS[name]
    module, _, function = name.partition(":")
    try:
        part: Callable[[Trajectory], float] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"reward part {name!r} cannot be imported: {error}") from error
    if not callable(part):
        raise ConfigError(f"reward part {name!r} is no function")
    return part


def _value(name: str, trajectory: Trajectory) -> float:
    """One part of one trajectory. A user's function may do anything, so its fault is named with the question."""
    part = _part(name)
    try:
        value = float(part(trajectory))
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        raise RewardError(f"reward part {name!r} failed on question {trajectory.question.id!r}: {fault}") from error
    if not math.isfinite(value):
        raise RewardError(f"reward part {name!r} gave {value} on question {trajectory.question.id!r}")
    return value
