"""What the estimators share. Axes: B episode, T response token. An episode whose mask is empty is void."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def credit_by_group(
    rewards_B: torch.Tensor,
    mask_BT: torch.Tensor,
    groups_B: Sequence[Hashable],
    credit: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Advantages (B, T) float32: `credit` of each group's live rewards (float64), on every policy token.

    Void episodes count in no group (invariant 7) and get zero. So does a group with one live episode or with equal
    rewards: the mean of equal numbers may differ from them in the last bit, so they are never passed on.
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
        if rewards.min() < rewards.max():
            advantages_B[rows] = credit(rewards).float()
    return advantages_B[:, None] * mask_BT


def whitened(values_BT: torch.Tensor, mask_BT: torch.Tensor, *, epsilon: float = 1e-8) -> torch.Tensor:
    """Values (B, T) float32 less their mean, by the root of their variance (n - 1) plus `epsilon`; zero off the mask.

    Mean and variance are over the tokens of the mask alone. Equal values give zero.
    """
    import torch

    mask_BT = mask_BT.bool()
    values = values_BT[mask_BT].double()
    white_BT = torch.zeros(mask_BT.shape, dtype=torch.float32, device=mask_BT.device)
    if len(values) and values.min() < values.max():
        white_BT[mask_BT] = ((values - values.mean()) / (values.var() + epsilon).sqrt()).float()
    return white_BT
