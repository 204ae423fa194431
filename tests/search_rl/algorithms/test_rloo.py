"""Leave-one-out advantages against hand-computed values and verl's own."""

from __future__ import annotations

import pytest
import torch

from search_rl.algorithms.rloo import leave_one_out_advantages


def test_an_episode_is_measured_by_its_siblings() -> None:
    """Would catch a baseline that holds the episode itself: 1 - (0 + 0.5) / 2 = 0.75."""
    advantages_BT = leave_one_out_advantages(torch.tensor([1.0, 0.0, 0.5]), torch.ones(3, 2), ["a"] * 3)
    assert advantages_BT.tolist() == [[0.75, 0.75], [-0.75, -0.75], [0.0, 0.0]]


def test_void_episode_is_nobodys_sibling() -> None:
    """Would catch verl's habit of counting void rows: with them the first would be at 1 - 0 / 3."""
    rewards = torch.tensor([1.0, 0.5, 0.0, 0.0])
    mask = torch.tensor([[1, 1], [1, 0], [0, 0], [0, 0]])
    advantages_BT = leave_one_out_advantages(rewards, mask, ["a"] * 4)
    assert advantages_BT.tolist() == [[0.5, 0.5], [-0.5, 0.0], [0.0, 0.0], [0.0, 0.0]]


def test_lone_and_equal_episodes_get_zero() -> None:
    """Would catch the raw reward of a lone episode, and the last bit of a mean of equal numbers."""
    advantages_BT = leave_one_out_advantages(torch.tensor([1.0, 0.1, 0.1, 0.1]), torch.ones(4, 1), list("abbb"))
    assert not advantages_BT.any()


@pytest.mark.slow
def test_equals_verl_on_live_groups() -> None:
    """Would catch a drift from verl's estimator where nothing is void and no group is single."""
    from verl.trainer.ppo.core_algos import compute_rloo_outcome_advantage

    torch.manual_seed(0)
    rewards, mask = torch.rand(12), (torch.rand(12, 5) > 0.4).long()
    mask[:, 0] = 1
    groups = [f"g{row % 3}" for row in range(12)]
    token_rewards = torch.zeros(12, 5)
    token_rewards[:, -1] = rewards
    verl, _ = compute_rloo_outcome_advantage(token_rewards, mask, index=groups)
    torch.testing.assert_close(leave_one_out_advantages(rewards, mask, groups), verl, atol=1e-6, rtol=0)
