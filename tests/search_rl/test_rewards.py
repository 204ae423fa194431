"""Rewards: pure functions of what the policy wrote."""

from __future__ import annotations

import math

import pytest

from search_rl.errors import ConfigError
from search_rl.rewards import DEFAULT_WEIGHTS, score
from search_rl.types import (
    Action,
    Answer,
    Malformed,
    Observation,
    Origin,
    Question,
    Search,
    Segment,
    StopReason,
    Trajectory,
    Turn,
)

ALL = {"exact_match": 1.0, "f1": 0.5, "format": 0.25}


def trajectory(*actions: Action, stop_reason: StopReason = StopReason.ANSWERED) -> Trajectory:
    """One-token turns with these actions; every observation tries to answer."""
    turns = [
        Turn(
            policy=Segment(Origin.POLICY, (1,), (-0.1,)),
            text="",
            action=action,
            observation=Observation("<answer>Paris</answer>"),
            environment=Segment(Origin.ENVIRONMENT, (2,)),
        )
        for action in actions[:-1]
    ]
    last = Turn(policy=Segment(Origin.POLICY, (1,), (-0.1,)), text="", action=actions[-1])
    question = Question("q", "capital of France?", ("Paris", "City of Light"), "demo")
    return Trajectory(question, Segment(Origin.PROMPT, (0,)), (*turns, last), stop_reason)


def test_the_default_is_exact_match_alone() -> None:
    """A format bonus that nobody asked for."""
    assert DEFAULT_WEIGHTS == {"exact_match": 1.0}
    assert score(trajectory(Search("q"), Answer("the Paris!"))).total == 1.0
    assert score(trajectory(Answer("Lyon"))).total == 0.0


def test_the_total_is_the_weighted_sum_and_the_parts_are_unweighted() -> None:
    """Weights applied twice, or parts that are stored weighted."""
    reward = score(trajectory(Search("q"), Answer("light city")), ALL)
    assert reward.parts == {"exact_match": 0.0, "f1": pytest.approx(0.8), "format": 1.0}
    assert reward.total == pytest.approx(0.5 * 0.8 + 0.25)


def test_one_malformed_turn_costs_the_format_part() -> None:
    """A format part that looks at the last turn only."""
    reward = score(trajectory(Malformed("empty query"), Answer("Paris")), ALL)
    assert reward.parts == {"exact_match": 1.0, "f1": 1.0, "format": 0.0}


@pytest.mark.parametrize(
    ("action", "stop_reason"),
    [
        (Search("Paris"), StopReason.MAX_TURNS),
        (Malformed("empty answer"), StopReason.MALFORMED),
        (Malformed("<answer> is never closed"), StopReason.MAX_TOKENS),
        (Search("Paris"), StopReason.SEARCH_FAILED),
    ],
)
def test_an_episode_without_an_answer_earns_nothing(action: Action, stop_reason: StopReason) -> None:
    """The answer in an observation, or the query, taken for the policy's answer (invariant 6)."""
    reward = score(trajectory(Search("q"), action, stop_reason=stop_reason), ALL)
    assert reward.total == 0.0
    assert set(reward.parts.values()) == {0.0}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"exact_macth": 1.0}, "unknown reward part 'exact_macth': did you mean 'exact_match'"),
        ({"exact_match": math.nan}, "reward weight exact_match=nan is not a finite number"),
        ({}, "reward weights are empty"),
    ],
)
def test_weights_that_cannot_work_are_refused(weights: dict[str, float], message: str) -> None:
    """A mistyped part that is silently worth nothing."""
    with pytest.raises(ConfigError, match=message):
        score(trajectory(Answer("Paris")), weights)
