"""verl's FSDP engine with a forward pass made for few cores. Axes: B sequence, L position, D hidden, N loss position.

Sequences are sorted by length and cut into micro-batches of bounded padded size; pads stand on the right, where causal
attention cannot see them, so no mask is built. Logits are made only where the loss looks: a search episode is mostly
prompt and passages, and the vocabulary is the widest matrix of a small model. A process that is alone keeps the plain
module. Episodes whose advantages are all zero are left out where nothing but the policy loss is asked for: their
gradient is zero. Gradients equal verl's own engine's.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.torch_dtypes import PrecisionType
from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine.utils import detach_tree, postprocess_batch_func
from verl.workers.utils.losses import ppo_loss

from search_rl.allocator import keep_memory_in_use
from search_rl.training import monitor
from search_rl.training.engine import SearchEngine, lora_scaling, merged_weights
from search_rl.training.packing import length_sorted_batches, loss_positions

DEFAULT_MICRO_BATCH_TOKENS = 4096
COMPUTE_NICENESS = -5


def _go_before_bystanders() -> None:
    """Raise the priority of this process where that is allowed (root, CAP_SYS_NICE).

    Each of Ray's dozen processes wakes a hundred times a second, and whenever one takes a core from a thread that
    computes, the other threads wait for that thread.
    """
    for thread in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # A thread may end meanwhile.
            os.setpriority(os.PRIO_PROCESS, int(thread.name), COMPUTE_NICENESS)


def _rows_in_loss(data: TensorDict, loss_function: Callable[..., Any] | None) -> list[int]:
    """The rows that can change the gradient: those with a token in the loss, and where the loss is verl's policy loss
    and nothing else, with an advantage.

    The loss is normalised over the whole batch, so that a row left out adds the zero it would have added. One row stays
    when all are zero, for the metrics.
    """
    rows = [row for row, mask in enumerate(data["loss_mask"].unbind()) if mask.any()]
    if not isinstance(loss_function, functools.partial) or loss_function.func is not ppo_loss:
        return rows
    if loss_function.keywords["config"].use_kl_loss or tu.get_non_tensor_data(data, "calculate_entropy", False):
        return rows
    advantages = data["advantages"].unbind()
    return [row for row in rows if advantages[row].any()] or rows[:1]


def _logits_at(self: Any, input_ids: torch.Tensor, positions: torch.Tensor, **_: Any) -> torch.Tensor:
    """Logits (N, vocabulary) at flat `positions` of the padded batch; replaces a causal LM's forward."""
    hidden_BLD = self.model(input_ids=input_ids, use_cache=False)[0]
    logits: torch.Tensor = self.lm_head(hidden_BLD.flatten(0, 1)[positions])
    return logits


def _values_at(self: Any, input_ids: torch.Tensor, positions: torch.Tensor, **_: Any) -> torch.Tensor:
    """Values (N,) at flat `positions` of the padded batch; replaces a token classifier's forward."""
    hidden_BLD = self.model(input_ids=input_ids, use_cache=False)[0]
    values: torch.Tensor = self.score(hidden_BLD.flatten(0, 1)[positions]).squeeze(-1)
    return values


class _CpuForward(FSDPEngineWithLMHead):
    """The passes of both engines; optimiser and checkpoints are verl's."""

    def initialize(self) -> None:
        """See verl's engine."""
        _go_before_bystanders()
        keep_memory_in_use()
        super().initialize()

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module as it is when this process is alone: there is nothing to shard, and FSDP would copy every weight
        twice a pass. verl's engine and checkpoints know plain modules."""
        if torch.distributed.get_world_size() > 1:
            return super()._build_fsdp_module(module)
        precision = self.engine_config.mixed_precision or {}
        self._autocast_dtype = PrecisionType.to_dtype(precision.get("param_dtype", "bf16"))
        return module

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool = False
    ) -> dict[str, Any]:
        """verl's contract: the loss summed over micro-batches is the loss of the batch, outputs in input order."""
        batch_num_tokens = data["loss_mask"].sum()
        torch.distributed.all_reduce(batch_num_tokens, group=self.get_data_parallel_group())
        tu.assign_non_tensor(
            data,
            sp_size=1,
            batch_num_tokens=batch_num_tokens.item(),
            dp_size=self.get_data_parallel_size(),
            use_dynamic_bsz=True,
        )
        max_tokens = tu.get_non_tensor_data(data, "max_token_len_per_gpu", DEFAULT_MICRO_BATCH_TOKENS)
        if not forward_only:
            data = tu.index_select_tensor_dict(data, _rows_in_loss(data, loss_function))
        indices = length_sorted_batches(data["input_ids"].offsets().diff().tolist(), max_tokens)
        outputs = []
        for rows in indices:
            with torch.no_grad() if forward_only else nullcontext():
                loss, output = self.forward_step(tu.index_select_tensor_dict(data, rows), loss_function, forward_only)
            if not forward_only:
                loss.backward()
                output.pop("model_output")
            outputs.append(output)
            monitor.beat("update" if not forward_only else "log-probs")
        return postprocess_batch_func(output_lst=outputs, indices=indices, data=data)  # type: ignore[no-any-return]

    def forward_step(
        self, micro_batch: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The loss of a micro-batch with its outputs; log-probs and entropy are zero off the loss positions."""
        use_bf16 = self._autocast_dtype != torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16) if use_bf16 else nullcontext():
            model_output = self._score(micro_batch)
            loss, metrics = torch.tensor(1.0), {}
            if loss_function is not None:
                loss, metrics = loss_function(
                    model_output=model_output, data=micro_batch, dp_group=self.get_data_parallel_group()
                )
        return loss, {
            "model_output": detach_tree(model_output),
            "loss": loss.detach().item(),
            "metrics": metrics,
        }

    def _score(self, micro_batch: TensorDict) -> dict[str, torch.Tensor]:
        packed, offsets = micro_batch["input_ids"].values(), micro_batch["input_ids"].offsets()
        lengths = offsets.diff()
        positions = loss_positions(lengths.tolist(), list(micro_batch["loss_mask"].unbind()))
        padded_BL = torch.nested.to_padded_tensor(micro_batch["input_ids"], padding=0)
        rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        flat = rows * padded_BL.shape[1] + torch.arange(len(packed)) - offsets[rows]
        raw = self.module(input_ids=padded_BL, positions=flat[positions]).float()

        def spread(values_N: torch.Tensor) -> torch.Tensor:
            full = values_N.new_zeros(len(packed)).index_put((positions,), values_N)
            return torch.nested.nested_tensor_from_jagged(full, offsets)

        outputs = self._outputs(raw, packed[positions + 1], micro_batch)
        return {name: spread(values_N) for name, values_N in outputs.items()}

    def _outputs(self, raw: torch.Tensor, labels_N: torch.Tensor, micro_batch: TensorDict) -> dict[str, torch.Tensor]:
        """What the loss needs, (N,) each, of what the model said at the loss positions."""
        raise NotImplementedError


class _CpuPolicy(_CpuForward):
    def _build_module(self) -> torch.nn.Module:
        module = super()._build_module()
        module.forward = types.MethodType(_logits_at, module)
        return module

    def _outputs(self, raw: torch.Tensor, labels_N: torch.Tensor, micro_batch: TensorDict) -> dict[str, torch.Tensor]:
        logits = raw / float(tu.get_non_tensor_data(micro_batch, "temperature", 1.0))
        # Void rows alone have no position, and verl's function stacks over positions.
        log_probs_N = logprobs_from_logits(logits=logits, labels=labels_N) if len(labels_N) else logits.sum(-1)
        outputs = {"log_probs": log_probs_N}
        if tu.get_non_tensor_data(micro_batch, "calculate_entropy", False):
            outputs["entropy"] = entropy_from_logits(logits)
        return outputs

    def get_per_tensor_param(self, *args: Any, **kwargs: Any) -> tuple[Iterator[tuple[str, torch.Tensor]], Any]:
        """Weights for the rollout engine by name, adapters merged in, so that no adapter's config goes along."""
        if not hasattr(self.module, "peft_config"):
            return super().get_per_tensor_param(*args, **kwargs)  # type: ignore[no-any-return]
        return iter(merged_weights(self.module.state_dict(), lora_scaling(self.module)).items()), None


class _CpuCritic(_CpuForward):
    def _build_module(self) -> torch.nn.Module:
        """The policy's checkpoint under a fresh value head; verl's own insists on flash attention."""
        from transformers import AutoModelForTokenClassification

        config = self.model_config.hf_config
        config.num_labels, config.classifier_dropout = 1, 0.0
        with torch.random.fork_rng():
            torch.manual_seed(self.engine_config.seed)
            module: torch.nn.Module = AutoModelForTokenClassification.from_pretrained(
                self.model_config.local_path,
                dtype=PrecisionType.to_dtype(self.engine_config.model_dtype or "fp32"),
                config=config,
                trust_remote_code=self.model_config.trust_remote_code,
            )
        if self.model_config.enable_gradient_checkpointing:
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        module.forward = types.MethodType(_values_at, module)
        return module

    def _outputs(self, raw: torch.Tensor, labels_N: torch.Tensor, micro_batch: TensorDict) -> dict[str, torch.Tensor]:
        return {"values": raw}


class CpuEngine(SearchEngine, _CpuPolicy):
    """The language-model engine of the CPU platform."""


class CpuCritic(SearchEngine, _CpuCritic):
    """The critic's engine of the CPU platform. A value is that of the tokens so far, as in verl's engine."""
