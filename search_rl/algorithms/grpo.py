"""Group-relative advantages that leave void episodes out. Axes: B episode, T response token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

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
    import torch

    mask_BT = mask_BT.bool()
    live_B = mask_BT.any(dim=1).tolist()
    members: dict[Hashable, list[int]] = defaultdict(list)
    for row, (group, is_live) in enumerate(zip(groups_B, live_B, strict=True)):
        if is_live:
            members[group].append(row)
    advantages_B = torch.zeros(len(live_B), dtype=torch.float32, device=mask_BT.device)
    for rows in members.values():
        rewards = rewards_B[rows].double()
        if rewards.min() == rewards.max():  # The mean of equal numbers may differ from them in the last bit.
            continue
        centred = rewards - rewards.mean()
        credit = centred / (rewards.std() + epsilon) if by_deviation else centred
        advantages_B[rows] = credit.float()
    return advantages_B[:, None] * mask_BT
