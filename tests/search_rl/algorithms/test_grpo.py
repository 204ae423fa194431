"""GRPO's advantages against hand-computed values, verl's own, and their laws."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from search_rl.algorithms.grpo import group_advantages


def test_two_siblings_get_plus_and_minus_one_over_root_two() -> None:
    """Would catch a population deviation in place of the sample one."""
    advantages_BT = group_advantages(torch.tensor([1.0, 0.0]), torch.ones(2, 3), ["a", "a"])
    assert advantages_BT[0].tolist() == pytest.approx([1 / sqrt(2)] * 3, abs=1e-5)
    assert advantages_BT[1].tolist() == pytest.approx([-1 / sqrt(2)] * 3, abs=1e-5)


def test_void_episode_counts_in_no_mean_and_no_deviation() -> None:
    """Would catch verl 0.9.1's habit of keeping rejected rows in the group statistics (its issue 6362)."""
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0])
    mask = torch.tensor([[1, 1], [1, 0], [0, 0], [0, 0]])
    advantages_BT = group_advantages(rewards, mask, ["a"] * 4)
    assert advantages_BT[0].tolist() == pytest.approx([1 / sqrt(2)] * 2, abs=1e-5)
    assert advantages_BT[1].tolist() == pytest.approx([-1 / sqrt(2), 0.0], abs=1e-5)
    assert not advantages_BT[2:].any()


def test_lone_episode_gets_zero() -> None:
    """Would catch a group of one that is rewarded without anything to compare with."""
    assert not group_advantages(torch.tensor([1.0, 1.0, 0.0]), torch.ones(3, 2), ["a", "b", "b"])[0].any()


def test_equal_rewards_give_zero() -> None:
    """Would catch a division by a deviation of zero."""
    assert not group_advantages(torch.full((4,), 0.7), torch.ones(4, 2), ["a"] * 4).any()


def test_without_deviation_the_mean_alone_is_taken_off() -> None:
    """Would catch Dr. GRPO divided by the deviation after all."""
    advantages_BT = group_advantages(torch.tensor([1.0, 0.0, 0.0]), torch.ones(3, 1), ["a"] * 3, by_deviation=False)
    assert advantages_BT[:, 0].tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])


@pytest.mark.slow
def test_equals_verl_on_live_groups() -> None:
    """Would catch a drift from verl's estimator where nothing is void and no group is single."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    torch.manual_seed(0)
    rewards, mask = torch.rand(12), (torch.rand(12, 5) > 0.4).long()
    mask[:, 0] = 1
    groups = [f"g{row % 3}" for row in range(12)]
    token_rewards = torch.zeros(12, 5)
    token_rewards[:, -1] = rewards
    verl, _ = compute_grpo_outcome_advantage(token_rewards, mask, index=groups)
    torch.testing.assert_close(group_advantages(rewards, mask, groups), verl, atol=1e-6, rtol=0)


episodes = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.25, 1.0]),
        st.lists(st.booleans(), min_size=4, max_size=4),
        st.sampled_from("abc"),
    ),
    min_size=1,
    max_size=12,
)


@given(episodes, st.floats(-3, 3), st.randoms())
def test_laws(rows: list[tuple[float, list[bool], str]], shift: float, random: object) -> None:
    """Would catch credit on tokens of the environment, a baseline that leaks between groups, and order dependence."""
    rewards, masks, groups = (list(column) for column in zip(*rows, strict=True))
    mask_BT = torch.tensor(masks)
    advantages_BT = group_advantages(torch.tensor(rewards), mask_BT, groups)
    assert not advantages_BT[~mask_BT].any()
    assert advantages_BT.isfinite().all()
    shifted = group_advantages(torch.tensor(rewards) + shift, mask_BT, groups)
    torch.testing.assert_close(shifted, advantages_BT, atol=2e-3, rtol=0)
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    reordered = group_advantages(torch.tensor(rewards)[order], mask_BT[order], [groups[row] for row in order])
    torch.testing.assert_close(reordered, advantages_BT[order], atol=1e-6, rtol=0)


def test_equal_rewards_that_binary_fractions_do_not_hold_earn_nothing() -> None:
    """The rounding of the mean, by a deviation of the same size, was credit: 0.029 for three rewards of .4476."""
    for reward in (0.4475529909763951, 0.1, 1 / 3):
        advantages_BT = group_advantages(torch.full((3,), reward), torch.ones(3, 2), ["a"] * 3)
        assert not advantages_BT.any()
