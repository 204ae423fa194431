"""Leave-one-out advantages. Axes: B episode, T response token."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from search_rl.algorithms.groups import credit_by_group

if TYPE_CHECKING:
    import torch


def leave_one_out_advantages(
    rewards_B: torch.Tensor, mask_BT: torch.Tensor, groups_B: Sequence[Hashable]
) -> torch.Tensor:
    """Advantage (B, T) float32: the reward less the mean of its live siblings, on every policy token, zero elsewhere.

    Source: RLOO, 2402.14740. Differs from verl 0.9.1, which counts void rows among the siblings and gives a lone
    episode its raw reward; here it gets zero.
    """
    return credit_by_group(rewards_B, mask_BT, groups_B, _less_siblings)


def _less_siblings(rewards: torch.Tensor) -> torch.Tensor:
    siblings = (rewards.sum() - rewards) / (len(rewards) - 1)
    return rewards - siblings
