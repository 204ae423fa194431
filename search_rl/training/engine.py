"""What our engines add to verl's, on CPUs and GPUs alike: void rows, steps that must not be taken, merged adapters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.utils.fsdp_utils import get_fsdp_full_state_dict
from verl.utils.transformers_compat import drop_tied_target_keys
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine


class SearchEngine(FSDPEngine):
    """Goes before one of verl's FSDP engines in a class's bases.

    verl 0.9.1 counts void and padded rows, and rejected tokens, in the loss's denominators; here they are left out. It
    skips an update whose gradient is no finite number; here one whose loss is none is skipped too. Both are counted.
    """

    _skipped_in_a_row = 0
    _is_loss_finite = True

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool = False
    ) -> dict[str, Any]:
        """See verl's engine. A mini-batch without a live row has no loss and no gradient."""
        if forward_only:
            return super().forward_backward_batch(data, loss_function, forward_only)  # type: ignore[no-any-return]
        group = self.get_data_parallel_group()
        if _has_rollouts(data) and not count_live_rows(data, group):
            return {"loss": [0.0], "metrics": {}, "model_output": {}}
        output: dict[str, Any] = super().forward_backward_batch(data, loss_function, forward_only)
        self._is_loss_finite = _all_agree(all(map(math.isfinite, output["loss"])), group)
        return output

    def optimizer_step(self) -> float:
        """The norm of the gradient before clipping, NaN for a step that was not taken because of the loss."""
        if self._is_loss_finite:
            norm = float(super().optimizer_step())
        else:
            self.optimizer_zero_grad()
            norm = math.nan
        self._skipped_in_a_row = 0 if math.isfinite(norm) else self._skipped_in_a_row + 1
        self._is_loss_finite = True
        return norm

    def train_batch(self, data: TensorDict, loss_function: Callable[..., Any]) -> dict[str, Any]:
        """See verl's engine. verl takes the mean of the first metric over mini-batches, the maximum of the second."""
        output: dict[str, Any] = super().train_batch(data, loss_function)
        if _has_rollouts(data):
            skipped = self._skipped_in_a_row
            output["metrics"] |= {"skipped_share": [float(skipped > 0)], "max_skipped_in_a_row": [float(skipped)]}
        return output

    def save_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """verl's checkpoint; with adapters, the model they make of the weights is exported beside it."""
        super().save_checkpoint(local_path, *args, **kwargs)
        module = self.module
        if hasattr(module, "peft_config"):
            state = get_fsdp_full_state_dict(module, offload_to_cpu=True, rank0_only=True)
            if torch.distributed.get_rank() == 0:
                _export(merged_weights(state, lora_scaling(module)), module.config, Path(local_path) / "huggingface")
            torch.distributed.barrier()


def count_live_rows(data: TensorDict, group: Any) -> int:
    """The rows of the whole mini-batch with a token in the loss; `data` is told to average over them alone."""
    data["loss_mask"] = data["response_mask"]
    live = torch.tensor(sum(bool(mask.any()) for mask in data["response_mask"].unbind()), device=get_device_id())
    torch.distributed.all_reduce(live, group=group)
    tu.assign_non_tensor(data, global_batch_size=max(int(live), 1))
    return int(live)


def _has_rollouts(data: TensorDict) -> bool:
    """True in RL, false for demonstrations."""
    return "response_mask" in set(data.keys())


def _all_agree(is_fine: bool, group: Any) -> bool:
    """True when it is so on every rank: an update is taken by all or by none."""
    verdict = torch.tensor(float(is_fine), device=get_device_id())
    torch.distributed.all_reduce(verdict, op=torch.distributed.ReduceOp.MIN, group=group)
    return bool(verdict)


def lora_scaling(module: torch.nn.Module) -> float:
    """What the product of the adapter matrices is multiplied by."""
    adapter = module.peft_config["default"]
    return float(adapter.lora_alpha) / float(adapter.r)


def merged_weights(state: Mapping[str, torch.Tensor], scaling: float) -> dict[str, torch.Tensor]:
    """A PEFT model's state as plain weights under the model's own names: W + scaling * B A (LoRA, 2106.09685)."""
    merged = {}
    for name, weight in state.items():
        if "lora_" in name:
            continue
        stem = name.removesuffix(".base_layer.weight")
        if stem != name and f"{stem}.lora_A.default.weight" in state:
            down, up = (state[f"{stem}.lora_{side}.default.weight"].float() for side in "AB")
            weight = (weight.float() + scaling * up @ down).to(weight.dtype)
        merged[name.replace(".base_layer", "").removeprefix("base_model.model.")] = weight
    return merged


def _export(weights: dict[str, torch.Tensor], config: Any, folder: Path) -> None:
    """A bf16 checkpoint for transformers, where verl has put config and tokenizer already."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM, GenerationConfig

    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to_empty(device="cpu")
    if (folder / "generation_config.json").exists():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    drop_tied_target_keys(weights, model, config)
    model.save_pretrained(folder, state_dict={name: weight.bfloat16() for name, weight in weights.items()})
