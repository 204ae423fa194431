"""The figures that stop a run, against hand-made rollouts."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
import torch

from search_rl.errors import EngineError, TrainingError
from search_rl.training.checks import (
    agreement,
    check_agreement,
    check_skipped_updates,
    check_void_share,
    spread,
    turn_numbers,
)
from search_rl.types import Answer, Origin, Question, Reward, Rollout, Segment, StopReason, Trajectory, Turn

_FAILURES = {StopReason.SEARCH_FAILED: "retriever at http://x failed"}


def rollouts(*stops: StopReason) -> list[Rollout]:
    turn = Turn(Segment(Origin.POLICY, (1,), (-1.0,)), "", Answer("x"))
    prompt = Segment(Origin.PROMPT, (9,))
    question = Question("1", "?", ("x",), "toy")
    trajectories = (Trajectory(question, prompt, (turn,), stop, _FAILURES.get(stop, "")) for stop in stops)
    return [Rollout(trajectory, Reward(0.0), "g") for trajectory in trajectories]


def test_void_share_above_the_limit_stops_the_run() -> None:
    """Would catch training on what an outage left over; a share at the limit goes on."""
    half = rollouts(StopReason.SEARCH_FAILED, StopReason.ANSWERED)
    check_void_share(half, step=4, max_share=0.5)
    with pytest.raises(TrainingError, match=r"50% of the episodes of step 4 are void, .*: .* http://x failed"):
        check_void_share(half, step=4, max_share=0.49)


def test_failed_rewards_count_as_void_and_are_told_apart() -> None:
    """Would catch a reward function that fails on half of the episodes and is never noticed."""
    lost, good = rollouts(StopReason.SEARCH_FAILED, StopReason.ANSWERED)
    unscored = replace(good, reward=Reward(0.0, failure="reward part 'm:f' gave nan on question '1'"))
    with pytest.raises(TrainingError, match=r"67% .*\(1 lost a search, 1 their reward\); .* part 'm:f'"):
        check_void_share([unscored, good, lost], step=2, max_share=0.5)


def test_step_without_a_live_episode_stops_whatever_the_limit() -> None:
    """Would catch an update on nothing: a loss of zero over zero tokens."""
    with pytest.raises(TrainingError, match="100% of the episodes of step 1 are void"):
        check_void_share(rollouts(StopReason.SEARCH_FAILED), step=1, max_share=1.0)


def test_skipped_updates_stop_the_run_at_the_limit() -> None:
    """Would catch a run that goes on for days without a step, and one that stops a skip too early."""
    check_skipped_updates(2, what="policy", limit=3)
    with pytest.raises(TrainingError, match=r"3 updates of the policy in a row .*max_skipped_updates=3"):
        check_skipped_updates(3, what="policy", limit=3)


def test_agreement_looks_at_policy_tokens_alone() -> None:
    """Would catch retrieved tokens, whose log-prob is stored as 0, in the figures."""
    rollout = torch.tensor([log(0.5), 0.0, log(0.2)])
    trainer = torch.tensor([log(0.4), -9.0, log(0.1)])
    found = agreement(rollout, trainer, torch.tensor([1, 0, 2]))
    assert found.pearson == pytest.approx(1.0)
    assert found.mean_abs_gap == pytest.approx((log(0.5 / 0.4) + log(0.2 / 0.1)) / 2)


def test_gap_is_told_by_turn() -> None:
    """Would catch a gap that grows with the turns, as after text that was encoded anew, hidden in one mean."""
    first = turn_numbers(torch.tensor([1, 1, 0, 0, 1, 0, 1]))
    second = turn_numbers(torch.tensor([1, 0, 1, 0]))
    assert first.tolist() == [1, 1, 0, 0, 2, 0, 3]
    assert second.tolist() == [1, 0, 2, 0]
    gaps = torch.tensor([0.1, 0.3, 9.0, 9.0, 0.5, 9.0, 1.0, 0.5, 9.0, 0.7, 9.0])
    found = agreement(-gaps, torch.zeros(11), torch.cat([first, second]))
    assert found.gap_by_turn == pytest.approx((0.9 / 3, 0.6, 1.0))
    assert found.metrics["agreement/turn_3_or_more_mean_abs_gap"] == pytest.approx(1.0)
    assert turn_numbers(torch.zeros(3)).tolist() == [0, 0, 0]


def test_engine_that_samples_uniformly_is_found() -> None:
    """Would catch the fault that this check exists for: a weight update that vLLM ignored, log-prob -ln(vocabulary)."""
    trainer = -torch.rand(200) * 3
    found = agreement(torch.full((200,), -log(49152)), trainer, torch.ones(200))
    with pytest.raises(EngineError, match="does not sample from the trained policy"):
        check_agreement(found, min_pearson=0.99, max_gap=0.03)


def test_equal_sides_agree() -> None:
    """Would catch a run that is stopped because its probabilities do not vary."""
    same = torch.full((5,), -0.25)
    found = agreement(same, same, torch.ones(5))
    assert (found.pearson, found.mean_abs_gap) == (1.0, 0.0)
    check_agreement(found, min_pearson=0.99, max_gap=0.03)


def test_nan_disagrees() -> None:
    """Would catch a comparison that NaN slips through."""
    found = agreement(torch.tensor([float("nan"), -1.0]), torch.tensor([-1.0, -1.0]), torch.ones(2))
    with pytest.raises(EngineError):
        check_agreement(found, min_pearson=0.0, max_gap=10.0)


@pytest.mark.parametrize(("count", "chosen"), [(1, "a"), (2, "ac"), (3, "abd"), (5, "abcde"), (9, "abcde")])
def test_sample_is_spread_over_the_step(count: int, chosen: str) -> None:
    """Would catch a check of the first questions alone, and a count that the step does not have."""
    assert "".join(spread("abcde", count)) == chosen
