"""Episodes as verl's trainer sends them to a training engine, and engines on a tiny model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Episode:
    """Ids and mask as an agent loop hands them over, with what GRPO and the rollout add."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    advantage: float


EPISODES = [
    Episode([5, 6, 7], [11, 12, 13, 901, 902, 14, 15], [1, 1, 1, 0, 0, 1, 1], 0.9),
    Episode([5, 6, 7, 8, 9], [21, 22, 903, 904, 905], [1, 1, 0, 0, 0], -0.4),
    Episode([3], [31], [1], 1.3),
    Episode([4, 4, 4], [41, 42, 43], [0, 0, 0], 0.0),
]


def make_engine(
    engine_class: type[Any],
    model_path: Path,
    *,
    model_type: str = "language_model",
    lora_rank: int = 0,
    learning_rate: float = 1e-3,
) -> Any:
    """An engine in fp32 on the tiny model, ready to train."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig

    model = HFModelConfig(
        path=str(model_path),
        use_remove_padding=False,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
        lora_rank=lora_rank,
        lora_alpha=2 * lora_rank,
    )
    model.model_type = model_type
    engine = engine_class(
        model,
        FSDPEngineConfig(
            strategy="fsdp2",
            use_torch_compile=False,
            mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32"},
        ),
        FSDPOptimizerConfig(lr=learning_rate, total_training_steps=4),
        CheckpointConfig(),
    )
    engine.initialize()
    return engine


def batch_of(episodes: list[Episode], *, with_entropy: bool = True) -> Any:
    """The batch that verl's trainer would send to the engine."""
    from verl.utils import tensordict_utils as tu

    def jagged(rows: list[list[Any]], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)

    masks = [episode.mask for episode in episodes]
    tensors = {
        "prompts": jagged([episode.prompt for episode in episodes]),
        "responses": jagged([episode.response for episode in episodes]),
        "input_ids": jagged([episode.prompt + episode.response for episode in episodes]),
        "position_ids": jagged([list(range(len(e.prompt) + len(e.response))) for e in episodes]),
        "response_mask": jagged(masks),
        "loss_mask": jagged(masks),
        "old_log_probs": jagged([[-10.8] * len(mask) for mask in masks], torch.float32),
        "advantages": jagged([[e.advantage * bit for bit in e.mask] for e in episodes], torch.float32),
    }
    settings = {
        "temperature": 1.0,
        "use_dynamic_bsz": True,
        "use_remove_padding": False,
        "max_token_len_per_gpu": 14,
        "global_batch_size": len(episodes),
        "calculate_entropy": with_entropy,
    }
    return tu.get_tensordict(tensors, settings)


def policy_loss(**settings: Any) -> Any:
    """verl's PPO loss under these settings of its actor."""
    from verl.workers.config import FSDPActorConfig
    from verl.workers.utils.losses import ppo_loss

    actor = FSDPActorConfig(strategy="fsdp2", rollout_n=1, ppo_mini_batch_size=4, use_dynamic_bsz=True, **settings)
    return partial(ppo_loss, config=actor)


def loss_and_gradients(
    engine: Any, episodes: list[Episode], *, with_entropy: bool = True, **settings: Any
) -> tuple[float, dict[str, torch.Tensor]]:
    """One training pass with verl's PPO loss; the optimiser does not step."""
    loss = policy_loss(entropy_coeff=0.01 if with_entropy else 0.0, **settings)
    with engine.train_mode():
        engine.optimizer_zero_grad()
        output = engine.forward_backward_batch(batch_of(episodes, with_entropy=with_entropy), loss)
        gradients = {
            name: (parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad).clone()
            for name, parameter in engine.module.named_parameters()
            if parameter.grad is not None
        }
    return sum(output["loss"]), gradients
