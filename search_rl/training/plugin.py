"""What this project registers with verl; verl imports it as `model.external_lib` wherever it builds a model config."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import register
from verl.trainer.ppo.core_algos import register_adv_est
from verl.trainer.ppo.v1.trainer_base import register_trainer

import search_rl.training.engines  # noqa: F401
from search_rl.algorithms.grpo import group_advantages
from search_rl.algorithms.reinforce_pp import reinforce_pp_advantages, reinforce_pp_baseline_advantages
from search_rl.algorithms.rloo import leave_one_out_advantages
from search_rl.training.agent_loop import SearchAgentLoop
from search_rl.training.algorithm_overrides import ADVANTAGES, TRAINERS
from search_rl.training.overrides import AGENT_LOOP
from search_rl.training.trainer import SearchTrainer, SearchTrainerColocateAsync, SearchTrainerSeparateAsync

GroupEstimator = Callable[[torch.Tensor, torch.Tensor, Sequence[Hashable]], torch.Tensor]
GROUP_ESTIMATORS: dict[str, GroupEstimator] = {
    "grpo": group_advantages,
    "grpo_no_std": partial(group_advantages, by_deviation=False),
    "rloo": leave_one_out_advantages,
    "reinforce++_baseline": reinforce_pp_baseline_advantages,
}


def _of_groups(estimate: GroupEstimator) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """An estimator as verl calls it: the episode's reward is the sum over its tokens, the group is the prompt's uid."""

    def estimator(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        advantages_BT = estimate(token_level_rewards.sum(dim=1), response_mask, list(index))
        return advantages_BT, advantages_BT

    return estimator


def _reinforce_pp(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: Any, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    advantages_BT = reinforce_pp_advantages(token_level_rewards, response_mask, discount=config.gamma)
    return advantages_BT, advantages_BT


register(AGENT_LOOP)(SearchAgentLoop)
for _trainer in (SearchTrainer, SearchTrainerColocateAsync, SearchTrainerSeparateAsync):
    register_trainer(TRAINERS[_trainer.mode])(_trainer)
for _name, _estimate in GROUP_ESTIMATORS.items():
    register_adv_est(ADVANTAGES[_name])(_of_groups(_estimate))
register_adv_est(ADVANTAGES["reinforce++"])(_reinforce_pp)
