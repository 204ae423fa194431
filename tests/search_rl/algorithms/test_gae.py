"""verl's own GAE, which PPO uses: what of it we rely on, and what we have to mend."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.slow


def test_void_rows_and_retrieved_spans_are_left_out() -> None:
    """Would catch a verl that whitens over void rows, or loses credit across an observation: lambda is 1, values are 0,
    so every policy token's return is the reward of its episode."""
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    rewards = torch.tensor([[0.0, 0.0, 0.0, 1.0], [-1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 9.0]])
    mask = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    advantages_BT, returns_BT = compute_gae_advantage_return(
        rewards, values=torch.zeros(3, 4), response_mask=mask, gamma=1.0, lam=1.0
    )
    assert returns_BT[mask.bool()].tolist() == [1.0, 1.0, 1.0, -1.0]
    assert advantages_BT[mask.bool()].tolist() == pytest.approx([0.5, 0.5, 0.5, -1.5])
    assert advantages_BT[~mask.bool()].any(), "verl has mended this: our trainer need not set it to zero any more"
