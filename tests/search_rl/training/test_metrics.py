"""A step's metrics against hand-counted episodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_rl.training.metrics import rollout_metrics
from search_rl.types import (
    Action,
    Answer,
    Observation,
    Origin,
    Question,
    Reward,
    Rollout,
    Search,
    SearchResult,
    Segment,
    StopReason,
    Trajectory,
    Turn,
)

QUESTION = Question("1", "?", ("x",), "toy")


def turn(action: Action, *, observed: bool, logprob: float = -1.0) -> Turn:
    policy = Segment(Origin.POLICY, (1, 2), (logprob, logprob))
    if not observed:
        return Turn(policy, "", action)
    results = (SearchResult(action.query, ()),) if isinstance(action, Search) else ()
    return Turn(policy, "", action, Observation("o", results), Segment(Origin.ENVIRONMENT, (3,)))


def rollout(group: str, total: float, *turns: Turn, stop: StopReason = StopReason.ANSWERED) -> Rollout:
    prompt = Segment(Origin.PROMPT, (9, 9))
    return Rollout(Trajectory(QUESTION, prompt, turns, stop), Reward(total, {"exact_match": total}), group)


def test_hand_counted_step() -> None:
    """Would catch void episodes in the means, a final search counted as one, and a group mixed by its voids."""
    found = turn(Search("q"), observed=True)
    rollouts = [
        rollout("a", 1.0, found, turn(Answer("x"), observed=False, logprob=-2.0)),
        rollout("a", 0.0, found, found, turn(Search("q"), observed=False), stop=StopReason.MAX_TURNS),
        rollout("b", 1.0, turn(Answer("x"), observed=False)),
        rollout("b", 0.0, turn(Search("q"), observed=False), stop=StopReason.SEARCH_FAILED),
    ]
    metrics = rollout_metrics(rollouts)
    assert metrics["agent/void_share"] == 0.25
    assert metrics["agent/searches_per_question"] == pytest.approx((1 + 2 + 0) / 3)
    assert metrics["agent/repeated_query_share"] == pytest.approx(1 / 3)
    assert metrics["group/mixed_share"] == 0.5
    assert metrics["reward/exact_match"] == pytest.approx(2 / 3)
    assert metrics["agent/format_rate"] == pytest.approx(2 / 3)
    assert metrics["agent/stop_max_turns"] == pytest.approx(1 / 3)
    assert metrics["agent/policy_tokens"] == pytest.approx((4 + 6 + 2) / 3)
    assert metrics["agent/sequence_tokens"] == pytest.approx((2 + 5 + 2 + 8 + 2 + 2) / 3)
    assert metrics["agent/entropy_estimate"] == pytest.approx((2 * 1 + 2 * 2 + 6 * 1 + 2 * 1) / 12)


def test_step_of_void_episodes_alone() -> None:
    """Would catch a mean over nothing."""
    void = rollout("a", 0.0, turn(Search("q"), observed=False), stop=StopReason.SEARCH_FAILED)
    assert rollout_metrics([void]) == {
        "agent/void_share": 1.0,
        "agent/void_search_share": 1.0,
        "agent/void_reward_share": 0.0,
    }


def test_episode_whose_reward_failed_is_void() -> None:
    """Would catch a reward of 0 that nobody gave, in the mean reward and in the mixed groups."""
    answered = turn(Answer("x"), observed=False)
    failed = replace(rollout("a", 0.0, answered), reward=Reward(0.0, failure="reward part 'm:f' gave nan"))
    metrics = rollout_metrics([rollout("a", 1.0, answered), failed])
    assert metrics["reward/exact_match"] == 1.0
    assert metrics["group/mixed_share"] == 0.0
    shares = [metrics[f"agent/void_{kind}"] for kind in ("share", "search_share", "reward_share")]
    assert shares == [0.5, 0.0, 0.5]
