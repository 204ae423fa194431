"""REINFORCE++ and its baseline variant. Axes: B episode, T response token."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from search_rl.algorithms.groups import credit_by_group, whitened

if TYPE_CHECKING:
    import torch


def reinforce_pp_advantages(rewards_BT: torch.Tensor, mask_BT: torch.Tensor, *, discount: float = 1.0) -> torch.Tensor:
    """Advantage (B, T) float32: the return from each policy token on, whitened over all policy tokens of the batch.

    Source: REINFORCE++, 2501.03262. Void episodes are in no statistic. Differs from verl 0.9.1, which drops a reward
    that stands outside the mask and leaves a trace of rounding where all returns are equal.
    """
    return whitened(returns_to_go(rewards_BT, mask_BT, discount=discount), mask_BT)


def reinforce_pp_baseline_advantages(
    rewards_B: torch.Tensor, mask_BT: torch.Tensor, groups_B: Sequence[Hashable]
) -> torch.Tensor:
    """Advantage (B, T) float32: the reward less its group's live mean, whitened over all policy tokens of the batch.

    Source: REINFORCE++-baseline, 2501.03262. The batch's mean is by token, so an episode with no credit in its group
    may get some here. Differs from verl 0.9.1 as GRPO's does.
    """
    return whitened(credit_by_group(rewards_B, mask_BT, groups_B, lambda rewards: rewards - rewards.mean()), mask_BT)


def returns_to_go(rewards_BT: torch.Tensor, mask_BT: torch.Tensor, *, discount: float = 1.0) -> torch.Tensor:
    """Returns (B, T) float32 on the policy tokens, zero elsewhere; one policy token is one step of `discount`.

    Tokens of the environment are no steps. A reward on one belongs to the policy token before it.
    """
    import torch

    mask_BT = mask_BT.bool()
    returns_BT = torch.zeros(mask_BT.shape, dtype=torch.float32, device=mask_BT.device)
    running_B = torch.zeros(len(mask_BT), dtype=torch.float64, device=mask_BT.device)
    for token in reversed(range(mask_BT.shape[1])):
        is_policy_B = mask_BT[:, token]
        running_B = rewards_BT[:, token].double() + torch.where(is_policy_B, discount, 1.0) * running_B
        returns_BT[:, token] = (running_B * is_policy_B).float()
    return returns_BT
