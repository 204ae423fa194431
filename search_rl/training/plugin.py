"""What this project registers with verl; verl imports it as `model.external_lib` wherever it builds a model config."""

from __future__ import annotations

from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import register
from verl.trainer.ppo.core_algos import register_adv_est
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.workers.engine.base import EngineRegistry

from search_rl.algorithms.grpo import group_advantages
from search_rl.training.agent_loop import SearchAgentLoop
from search_rl.training.patches import is_cpu_platform
from search_rl.training.trainer import SearchTrainer

AGENT_LOOP = "search_agent"
TRAINER = "search_rl_sync"


def _grpo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    advantages_BT = group_advantages(token_level_rewards.sum(dim=1), response_mask, list(index))
    return advantages_BT, advantages_BT


def _grpo_no_std(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    advantages_BT = group_advantages(token_level_rewards.sum(dim=1), response_mask, list(index), by_deviation=False)
    return advantages_BT, advantages_BT


register(AGENT_LOOP)(SearchAgentLoop)
register_trainer(TRAINER)(SearchTrainer)
register_adv_est("search_rl_grpo")(_grpo)
register_adv_est("search_rl_grpo_no_std")(_grpo_no_std)
if not is_cpu_platform():
    from search_rl.training.live_rows import LiveRowsEngine

    # A vendor's entry goes before the one that verl makes for the device.
    vendors = ["nvidia", "amd"]
    EngineRegistry.register("language_model", backend=["fsdp", "fsdp2"], vendor=vendors)(LiveRowsEngine)
else:
    from search_rl.training.cpu_engine import CpuEngine

    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cpu"])(CpuEngine)
