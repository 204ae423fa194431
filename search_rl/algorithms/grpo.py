"""Group-relative advantages that leave void episodes out. Axes: B episode, T response token."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from search_rl.algorithms.groups import credit_by_group

if TYPE_CHECKING:
    import torch


def group_advantages(
    rewards_B: torch.Tensor,
    mask_BT: torch.Tensor,
    groups_B: Sequence[Hashable],
    *,
    by_deviation: bool = True,
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """Advantage (B, T) float32: the reward less its group's mean, on every policy token, zero elsewhere.

    An episode whose mask is empty is void: it gets zero and counts in no mean and no deviation (invariant 7).
    `by_deviation` divides by the group's sample deviation (n - 1) plus `epsilon`; without it this is Dr. GRPO's
    estimator (2503.20783). A group with one live episode, or with equal rewards, gets zero.
    Source: GRPO, 2402.03300. Differs from verl 0.9.1, which counts void rows in the statistics and gives a lone
    episode its raw reward.
    """

    def credit(rewards: torch.Tensor) -> torch.Tensor:
        centred = rewards - rewards.mean()
        return centred / (rewards.std() + epsilon) if by_deviation else centred

    return credit_by_group(rewards_B, mask_BT, groups_B, credit)
