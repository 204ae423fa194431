"""REINFORCE++ and its baseline variant against hand-computed values and verl's own."""

from __future__ import annotations

from math import sqrt
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from search_rl.algorithms.groups import whitened
from search_rl.algorithms.reinforce_pp import (
    reinforce_pp_advantages,
    reinforce_pp_baseline_advantages,
    returns_to_go,
)

MASK = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
REWARDS = torch.tensor([[0.0, 0.0, 0.0, 1.0], [-1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 9.0]])


def test_returns_skip_what_the_environment_wrote() -> None:
    """Would catch a discount for retrieved tokens: the first token is two steps before the reward, not three."""
    returns_BT = returns_to_go(REWARDS, MASK, discount=0.5)
    assert returns_BT.tolist() == [[0.25, 0.5, 0.0, 1.0], [-1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]


def test_reward_on_a_masked_token_belongs_to_the_policy_token_before() -> None:
    """Would catch verl's loss of a reward that a rejected last token carries."""
    returns_BT = returns_to_go(torch.tensor([[0.0, 0.0, 2.0]]), torch.tensor([[1, 1, 0]]))
    assert returns_BT.tolist() == [[2.0, 2.0, 0.0]]


def test_whitening_is_over_live_policy_tokens() -> None:
    """Would catch the void episode's reward of 9, or zeros off the mask, in the statistics: they are of 1, 1, 1, -1."""
    advantages_BT = reinforce_pp_advantages(REWARDS, MASK)
    assert advantages_BT[0].tolist() == pytest.approx([0.5, 0.5, 0.0, 0.5])
    assert advantages_BT[1].tolist() == pytest.approx([-1.5, 0.0, 0.0, 0.0])
    assert not advantages_BT[2].any()


def test_baseline_leaves_void_episodes_out_of_the_group() -> None:
    """Would catch a group mean with the void one: the live means are 0.5, so the credit is +-0.5 on two tokens each."""
    mask = torch.tensor([[1, 1], [1, 1], [0, 0]])
    advantages_BT = reinforce_pp_baseline_advantages(torch.tensor([1.0, 0.0, 5.0]), mask, ["a"] * 3)
    expected = 0.5 / sqrt(4 * 0.25 / 3)
    assert advantages_BT[0].tolist() == pytest.approx([expected] * 2)
    assert advantages_BT[1].tolist() == pytest.approx([-expected] * 2)
    assert not advantages_BT[2].any()


def test_equal_returns_earn_nothing() -> None:
    """Would catch the rounding of the mean, divided by a deviation of nearly nothing."""
    rewards = torch.zeros(3, 2)
    rewards[:, 1] = 0.4475529909763951
    assert not reinforce_pp_advantages(rewards, torch.ones(3, 2)).any()
    assert not reinforce_pp_baseline_advantages(rewards.sum(1), torch.ones(3, 2), ["a"] * 3).any()


def test_nothing_live_is_nothing() -> None:
    """Would catch a mean of no tokens."""
    assert not reinforce_pp_advantages(REWARDS, torch.zeros(3, 4)).any()


@pytest.mark.slow
def test_equal_verl_where_nothing_is_void() -> None:
    """Would catch a drift from verl's two estimators."""
    from verl.trainer.ppo.core_algos import (
        compute_reinforce_plus_plus_baseline_outcome_advantage,
        compute_reinforce_plus_plus_outcome_advantage,
    )

    torch.manual_seed(0)
    mask = (torch.rand(12, 5) > 0.4).long()
    mask[:, 0] = mask[:, -1] = 1
    token_rewards = torch.zeros(12, 5)
    token_rewards[:, -1] = torch.rand(12)
    groups = [f"g{row % 3}" for row in range(12)]
    verl, _ = compute_reinforce_plus_plus_outcome_advantage(token_rewards, mask, config=SimpleNamespace(gamma=0.9))
    torch.testing.assert_close(reinforce_pp_advantages(token_rewards, mask, discount=0.9), verl, atol=1e-5, rtol=0)
    verl, _ = compute_reinforce_plus_plus_baseline_outcome_advantage(token_rewards, mask, index=groups)
    ours = reinforce_pp_baseline_advantages(token_rewards.sum(1), mask, groups)
    torch.testing.assert_close(ours, verl, atol=1e-5, rtol=0)


cells = st.lists(st.tuples(st.floats(-3, 3, width=32), st.booleans()), min_size=3, max_size=3)


@settings(max_examples=40)
@given(st.lists(cells, min_size=1, max_size=6))
def test_whitened_tokens_have_mean_zero_and_deviation_one(rows: list[list[tuple[float, bool]]]) -> None:
    """Would catch statistics over tokens that are not the policy's."""
    values_BT = torch.tensor([[value for value, _ in row] for row in rows])
    mask_BT = torch.tensor([[bit for _, bit in row] for row in rows])
    white_BT = whitened(values_BT, mask_BT)
    assert not white_BT[~mask_BT].any()
    inside = white_BT[mask_BT].double()
    if len(inside) > 1 and values_BT[mask_BT].double().var() > 1e-3:
        assert inside.mean().item() == pytest.approx(0, abs=1e-5)
        assert inside.std().item() == pytest.approx(1, abs=1e-4)
