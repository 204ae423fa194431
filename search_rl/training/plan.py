"""What a run needs before it starts: bytes per device, tokens per step, and steps per hour from a measured run.

An estimate with its parts shown, on the safe side. P parameters, T trained ones, N devices, H hidden size, L layers, V
vocabulary, M tokens of a micro-batch:

    trainer    masters 4 P / N, gradients 4 T / N, Adam 8 T / N                     fp32, sharded by FSDP
    pass       34 H M a layer (2205.05198, less the attention matrix), with checkpointing 2 H M a layer and one layer
               whole; logits 10 V M (bf16, fp32 and its gradient); two gathered layers and the embeddings in bf16
    rollout    vLLM's share of the device, which must hold 2 P / tensor_parallel and one episode of full length

A GPU does one of pass and rollout at a time; the trainer's part stays, unless it is offloaded. On a CPU all of it is
one memory, and Ray's and verl's own processes are in it too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from search_rl.config import Config
from search_rl.errors import ConfigError, ModelError
from search_rl.training.run_folder import read_metrics

GIB = 1024**3
ENGINE_BYTES = 1 * GIB
"""What vLLM needs beside weights and cache."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CPU_HELPERS_BYTES = 7_700 * 1024**2
"""The retrieval service, a dozen processes of Ray and verl, and the libraries of trainer and engine: with verl 0.9.1
12.7 to 13.3 GiB were measured for the whole demo, as proportional set sizes."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a causal language model that decide how much memory it takes."""

    num_parameters: int
    num_layers: int
    hidden_size: int
    vocabulary_size: int
    cache_bytes_per_token: int

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer, on average."""
        return (self.num_parameters - self.vocabulary_size * self.hidden_size) // self.num_layers


@dataclass(frozen=True, slots=True)
class Demand:
    """One thing that takes memory, and the config key that makes it smaller."""

    name: str
    num_bytes: int
    key: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What one device holds while it trains and while it generates, and how much a step has to do."""

    shape: ModelShape
    update: tuple[Demand, ...]
    rollout: tuple[Demand, ...]
    memory_bytes: int | None
    episodes_per_step: int
    max_tokens_per_step: int
    steps_per_hour: float | None = None

    @property
    def peak_bytes(self) -> int:
        """The larger of the two phases."""
        return max(sum(demand.num_bytes for demand in phase) for phase in (self.update, self.rollout))

    @property
    def summary(self) -> str:
        """One line: what a device holds at most, and has."""
        needed = f"memory: about {self.peak_bytes / GIB:.1f} GiB a device"
        return needed if self.memory_bytes is None else f"{needed}, which has {self.memory_bytes / GIB:.1f} GiB"

    def check(self) -> None:
        """Raise ConfigError, naming the largest demand and its key, when a phase does not fit the device."""
        for name, phase in (("update", self.update), ("rollout", self.rollout)):
            needed = sum(demand.num_bytes for demand in phase)
            if self.memory_bytes is not None and needed > self.memory_bytes:
                largest = max(phase, key=lambda demand: demand.num_bytes)
                raise ConfigError(
                    f"the {name} needs about {needed / GIB:.1f} GiB a device, which has {self.memory_bytes / GIB:.1f}: "
                    f"most of it is {largest.name} ({largest.num_bytes / GIB:.1f} GiB); change {largest.key}, or say "
                    f"what there is with hardware.memory_gib"
                )


def plan(config: Config, shape: ModelShape, *, memory_bytes: int | None = None, measured: Path | None = None) -> Plan:
    """The plan of a run. `measured` is the folder of a finished run on the same hardware, whose rates are scaled.

    Raises ConfigError when the rollout engine's share cannot hold the weights and one whole episode, or when the
    measured run has no metrics.
    """
    device = memory_bytes if config.hardware.platform == "gpu" else None
    trainer = _trainer_state(config, shape)
    episodes = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    engine = _engine(config, shape, device)
    if config.hardware.platform == "cpu":
        helpers = Demand("other processes, libraries", CPU_HELPERS_BYTES, "nothing: it is fixed")
        update = rollout = (*trainer, *_pass(config, shape), engine, helpers)
    else:
        resident = () if config.hardware.offload else tuple(part for part in trainer if part.name != "gradients")
        update, rollout = (*trainer, *_pass(config, shape)), (*resident, engine)
    return Plan(
        shape,
        update,
        rollout,
        memory_bytes,
        episodes,
        episodes * config.agent.max_model_tokens,
        None if measured is None else _steps_per_hour(measured, config, episodes),
    )


def device_memory_bytes(config: Config) -> int | None:
    """What `hardware.memory_gib` says, or on a CPU what this machine has; None for a GPU that nobody described."""
    if config.hardware.memory_gib:
        return int(config.hardware.memory_gib * GIB)
    return _machine_bytes() if config.hardware.platform == "cpu" else None


def _machine_bytes() -> int:
    """The machine's memory, or what a container may have of it."""
    total = int(psutil.virtual_memory().total)
    limit = CGROUP_LIMIT.read_text().strip() if CGROUP_LIMIT.exists() else ""
    return min(total, int(limit)) if limit.isdigit() else total


def check_memory(config: Config) -> Plan | None:
    """The plan of a run that fits; None where the memory is not known. Raises ConfigError for one that does not fit."""
    memory_bytes = device_memory_bytes(config)
    if memory_bytes is None:
        return None
    made = plan(config, read_shape(config.model.path), memory_bytes=memory_bytes)
    made.check()
    return made


def read_shape(model_path: str) -> ModelShape:
    """The shape of a checkpoint folder or cached hub id; no weight is read. Raises ModelError."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(model_path)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ModelError(
            f"no model config in {model_path}: {reason}; a folder with its config.json is enough"
        ) from error
    text = config.get_text_config()
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return ModelShape(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        vocabulary_size=text.vocab_size,
        cache_bytes_per_token=2 * 2 * text.num_hidden_layers * heads * head_size,
    )


def _num_devices(config: Config) -> int:
    return 1 if config.hardware.platform == "cpu" else config.hardware.nodes * config.hardware.gpus_per_node


def _trained_parameters(config: Config, shape: ModelShape) -> int:
    """All of them, or those of LoRA's two thin matrices at the seven projections of each layer (about 14 H a rank)."""
    rank = config.model.lora_rank
    return shape.num_layers * 14 * shape.hidden_size * rank if rank else shape.num_parameters


def _trainer_state(config: Config, shape: ModelShape) -> tuple[Demand, ...]:
    devices, trained = _num_devices(config), _trained_parameters(config, shape)
    parts = [
        Demand("fp32 masters", 4 * shape.num_parameters // devices, "hardware.nodes or hardware.offload"),
        Demand("gradients", 4 * trained // devices, "hardware.nodes or model.lora_rank"),
        Demand("Adam's moments", 8 * trained // devices, "hardware.offload or model.lora_rank"),
    ]
    if config.algorithm.kl_coefficient > 0 and not config.model.lora_rank:
        parts.append(Demand("the reference policy", 4 * shape.num_parameters // devices, "algorithm.kl_coefficient"))
    return tuple(parts)


def _pass(config: Config, shape: ModelShape) -> tuple[Demand, ...]:
    tokens, hidden = config.optimizer.micro_batch_tokens, shape.hidden_size
    whole_layers = 1 if config.model.gradient_checkpointing else shape.num_layers
    kept_layers = shape.num_layers if config.model.gradient_checkpointing else 0
    gathered = 2 * (2 * shape.layer_parameters + shape.vocabulary_size * hidden)
    return (
        Demand(
            "activations",
            (34 * whole_layers + 2 * kept_layers) * hidden * tokens,
            "optimizer.micro_batch_tokens or model.gradient_checkpointing",
        ),
        Demand("logits", 10 * shape.vocabulary_size * tokens, "optimizer.micro_batch_tokens"),
        Demand("gathered weights", gathered, "nothing: it is the model"),
    )


def _engine(config: Config, shape: ModelShape, device_bytes: int | None) -> Demand:
    weights = 2 * shape.num_parameters // config.rollout.tensor_parallel
    if config.hardware.platform == "cpu":
        cache = config.hardware.kv_cache_gib * GIB
        return Demand("vLLM", weights + cache + ENGINE_BYTES, "hardware.kv_cache_gib")
    if device_bytes is None:
        return Demand("vLLM's weights", weights + ENGINE_BYTES, "rollout.tensor_parallel")
    share = int(config.rollout.gpu_memory_share * device_bytes)
    least = weights + ENGINE_BYTES + shape.cache_bytes_per_token * config.agent.max_model_tokens
    if share < least:
        raise ConfigError(
            f"rollout.gpu_memory_share={config.rollout.gpu_memory_share} of {device_bytes / GIB:.0f} GiB is "
            f"{share / GIB:.1f} GiB: vLLM needs {least / GIB:.1f} for the weights and one whole episode; raise it or "
            f"rollout.tensor_parallel"
        )
    return Demand("vLLM's share", share, "rollout.gpu_memory_share")


def _steps_per_hour(folder: Path, config: Config, episodes: int) -> float:
    """From the median step of a run, taking the time of a step as proportional to its episodes."""
    rows = read_metrics(folder / "metrics.jsonl")
    if not rows:
        raise ConfigError(f"no metrics in {folder}: --measured takes the folder of a run that did a step")
    measured: dict[str, Any] = json.loads((folder / "config.json").read_text())
    kept, wanted = measured["algorithm"].get("trained_samples"), config.algorithm.trained_samples
    if kept != wanted:
        raise ConfigError(
            f"{folder} trained on algorithm.trained_samples={kept}, this config on {wanted}, and an update takes "
            f"other time there: give --measured the folder of a run like this one"
        )
    rollout = measured["rollout"]
    sizes = int(rollout["prompts_per_step"] * rollout["samples_per_prompt"])
    return 3600.0 / (median(float(row["timing_s/step"]) for row in rows) * episodes / sizes)
