"""Sequence means over live episodes alone: verl 0.9.1 divides by the configured batch, voids and padding counted.

Its token mean divides by the loss mask's sum, which leaves them out by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead


def divide_by_live_rows(data: TensorDict, data_parallel_group: Any) -> None:
    """Set `global_batch_size`, by which verl divides sums over sequences, to the rows that have a token in the loss.

    The rows of all data-parallel ranks are counted; at least one, so that a batch of padding divides by no zero.
    """
    live = torch.stack([mask.any() for mask in data["loss_mask"].unbind()]).sum().to(get_device_id())
    torch.distributed.all_reduce(live, group=data_parallel_group)
    tu.assign_non_tensor(data, global_batch_size=max(int(live.item()), 1))


class LiveRowsEngine(FSDPEngineWithLMHead):
    """verl's engine with denominators of live episodes."""

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool = False
    ) -> Any:
        """See verl's engine."""
        if not forward_only:
            divide_by_live_rows(data, self.get_data_parallel_group())
        return super().forward_backward_batch(data, loss_function, forward_only)
