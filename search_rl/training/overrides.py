"""A config as verl's own Hydra overrides: the one place that knows verl's key names (0.9.1)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from search_rl.agent.episode import Limits
from search_rl.config import AgentSection, Config
from search_rl.engines.vllm_cpu import CPU_ENGINE_ARGUMENTS
from search_rl.errors import ConfigError
from search_rl.training.algorithm_overrides import (
    EXTERNAL_LIB,
    algorithm_tree,
    critic_trainer_tree,
    critic_tree,
    lora_tree,
    loss_tree,
    mode_tree,
    model_tree,
    overlong_settings,
    reference_tree,
    rollout_extras,
)

AGENT_LOOP = "search_agent"
WEIGHT_BUCKET_MIB = 2048
CPU_WEIGHT_BUCKET_MIB = 256


def limits_of(agent: AgentSection, top_k: int) -> Limits:
    """The episode's budgets as the agent takes them."""
    return Limits(**agent.budgets, top_k=top_k)


def check_trainable(agent: AgentSection) -> None:
    """Raise ConfigError for an agent whose episodes are no sequences that a trainer could learn from."""
    if not agent.keep_reasoning:
        raise ConfigError(
            "agent.keep_reasoning=false cannot be trained: a turn sampled without the thoughts before it is no "
            "continuation of the episode's one sequence. Train with true; false is for search-rl eval and ask"
        )


def verl_overrides(config: Config, *, resume: bool = False) -> list[str]:
    """The arguments that `python -m verl.trainer.main_ppo` would take for this config, in a stable order.

    Raises ConfigError as `check_trainable` does.
    """
    check_trainable(config.agent)
    tree = {
        "algorithm": algorithm_tree(config),
        "data": _data(config),
        "actor_rollout_ref": {
            "model": model_tree(config) | lora_tree(config),
            "actor": _actor(config),
            **reference_tree(config),
            "rollout": _rollout(config),
            **({"hybrid_engine": False} if config.trainer.mode == "separate_async" else {}),
        },
        **critic_tree(config),
        "reward": {"num_workers": 0},  # The agent loop scores; verl's own scorers would only take memory.
        "trainer": _trainer(config, resume=resume),
        "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": config.hardware.nodes}}},
    }
    lines = list(_flat(tree, ""))
    lines += _settings(config) + _platform(config)
    return lines + list(config.verl)


def _data(config: Config) -> dict[str, Any]:
    return {
        "train_files": [str(path.resolve()) for path in config.data.train],
        "val_files": [str(path.resolve()) for path in config.data.dev],
        "train_batch_size": config.rollout.prompts_per_step,
        "max_prompt_length": config.agent.max_prompt_tokens,
        "max_response_length": config.agent.max_response_tokens,
        "filter_overlong_prompts": False,
        "shuffle": config.data.shuffle,
        "seed": config.run.seed,
        "validation_shuffle": False,
        "dataloader_num_workers": 0 if config.hardware.platform == "cpu" else 8,
    }


def mini_batch_groups(config: Config) -> int:
    """An update as verl counts it, in groups of all samples, where `trained_samples` of each are trained on."""
    rollout, kept = config.rollout, config.algorithm.trained_samples
    return config.optimizer.mini_batch_prompts * (kept or rollout.samples_per_prompt) // rollout.samples_per_prompt


def _actor(config: Config) -> dict[str, Any]:
    optimizer = config.optimizer
    save_contents = ["model", "optimizer", "extra"] + ([] if config.model.lora_rank else ["hf_model"])
    return {
        "strategy": "fsdp2",
        "ppo_mini_batch_size": mini_batch_groups(config),
        "use_dynamic_bsz": True,
        "ppo_max_token_len_per_gpu": optimizer.micro_batch_tokens,
        **loss_tree(config),
        "use_torch_compile": config.hardware.platform == "gpu",
        "data_loader_seed": config.run.seed,
        "optim": {
            "lr": optimizer.learning_rate,
            "lr_warmup_steps": optimizer.warmup_steps,
            "weight_decay": optimizer.weight_decay,
            "clip_grad": optimizer.max_gradient_norm,
            "+override_optimizer_config": {"fused": True},
        },
        "fsdp_config": {
            "model_dtype": "fp32",
            "param_offload": config.hardware.offload,
            "optimizer_offload": config.hardware.offload,
            "use_torch_compile": config.hardware.platform == "gpu",
            "seed": config.run.seed,
        },
        "checkpoint": {
            "save_contents": save_contents,
            "load_contents": ["model", "optimizer", "extra"],
        },
    }


def _rollout(config: Config) -> dict[str, Any]:
    rollout, on_cpu = config.rollout, config.hardware.platform == "cpu"
    return {
        "name": "vllm",
        "mode": "async",
        "n": rollout.samples_per_prompt,
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "val_kwargs": {"temperature": 0, "top_p": 1.0, "top_k": -1, "n": 1},
        "seed": config.run.seed,
        "tensor_model_parallel_size": rollout.tensor_parallel,
        "gpu_memory_utilization": rollout.gpu_memory_share,
        "max_num_seqs": rollout.max_concurrent_sequences,
        "max_model_len": config.agent.max_model_tokens,
        "calculate_log_probs": True,
        "log_prob_use_dynamic_bsz": True,
        "log_prob_max_token_len_per_gpu": config.optimizer.micro_batch_tokens,
        # On a CPU vLLM 0.28 dies of a seeded request whose prompt is cut in two.
        "enable_chunked_prefill": not (on_cpu and rollout.reproducible),
        # A prefix in the cache was computed in other shapes: it rounds otherwise, and may be there or not.
        "enable_prefix_caching": not rollout.reproducible,
        "free_cache_engine": not on_cpu,
        "agent": {"num_workers": rollout.num_workers, "default_agent_loop": AGENT_LOOP},
        "checkpoint_engine": {
            "update_weights_bucket_megabytes": CPU_WEIGHT_BUCKET_MIB if on_cpu else WEIGHT_BUCKET_MIB,
            "backend": "nccl" if config.trainer.mode == "separate_async" else "naive",
        },
        **rollout_extras(config),
    }


def _trainer(config: Config, *, resume: bool) -> dict[str, Any]:
    trainer, hardware = config.trainer, config.hardware
    return {
        "v1": mode_tree(config),
        "project_name": "search-rl",
        "experiment_name": config.run.name,
        "logger": list(trainer.trackers),
        "nnodes": hardware.nodes,
        "n_gpus_per_node": hardware.gpus_per_node,
        "device": "cpu" if hardware.platform == "cpu" else "cuda",
        "total_training_steps": trainer.total_steps,
        "total_epochs": 1_000_000,
        "save_freq": trainer.save_every_steps,
        **critic_trainer_tree(config),
        "val_before_train": False,
        "test_freq": trainer.eval_every_steps or -1,
        "resume_mode": "auto" if resume else "disable",
        "default_local_dir": str(config.run.folder.resolve() / "checkpoints"),
    }


def _settings(config: Config) -> list[str]:
    """What our agent loop and trainer need, on the free-form part of verl's rollout config."""
    settings = {
        "run_folder": str(config.run.folder.resolve()),
        "conversation": config.agent.conversation,
        "limits": asdict(limits_of(config.agent, config.retriever.top_k)),
        # A generation that new weights interrupt goes on as another request, whose noise must not be the same again.
        "seed": config.run.seed if config.rollout.reproducible and config.trainer.mode == "sync" else None,
        "retriever": {
            **config.retriever.client_options,
            "url": list(config.retriever.urls),
            "token_file": str(config.retriever.token_file.resolve()) if config.retriever.token_file else "",
        },
        "reward": json.dumps(config.reward),
        "overlong": overlong_settings(config),
        "max_skipped_updates": config.trainer.max_skipped_updates,
        "max_void_share": config.trainer.max_void_share,
        "trained_samples": config.algorithm.trained_samples,
        "keep_checkpoints": config.trainer.keep_checkpoints,
        "eval_questions": config.trainer.eval_questions,
        "min_agreement_pearson": config.trainer.min_agreement_pearson,
        "max_agreement_gap": config.trainer.max_agreement_gap,
    }
    return [f"+{line}" for line in _flat({"actor_rollout_ref": {"rollout": {"custom": {"search_rl": settings}}}}, "")]


def _platform(config: Config) -> list[str]:
    """Logical resources: Ray must believe in one accelerator and in enough cores to place every small actor."""
    if config.hardware.platform == "gpu":
        return []
    return [
        *(f"+{line}" for line in _flat(CPU_ENGINE_ARGUMENTS, "actor_rollout_ref.rollout.engine_kwargs.vllm.")),
        "+actor_rollout_ref.rollout.enable_sleep_mode=False",
        "+ray_kwargs.ray_init.num_cpus=16",
        "+ray_kwargs.ray_init.num_gpus=2",
        "+ray_kwargs.ray_init.include_dashboard=False",
    ]


def _flat(tree: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in tree.items():
        plus = "+" if key.startswith("+") else ""
        dotted = f"{prefix}{key.removeprefix('+')}"
        if isinstance(value, Mapping):
            yield from (plus + line for line in _flat(value, f"{dotted}."))
        else:
            yield f"{plus}{dotted}={_hydra(value)}"


def _hydra(value: Any) -> str:
    """A value in Hydra's grammar; strings are quoted only where they must be."""
    if isinstance(value, str):
        plain = value and all(character.isalnum() or character in "-_/.@" for character in value)
        return value if plain and value not in ("true", "false", "null") else json.dumps(value)
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(_hydra(item) for item in value)}]"
    return {True: "True", False: "False"}.get(value, repr(value)) if isinstance(value, bool) else str(value)


def verl_command(config: Config, *, resume: bool = False) -> str:
    """The shell command that starts this run with verl alone; VERL_USE_EXTERNAL_MODULES registers our trainer."""
    lines = [f"  {shlex.quote(line)}" for line in verl_overrides(config, resume=resume)]
    head = f"VERL_USE_EXTERNAL_MODULES={EXTERNAL_LIB} python -m verl.trainer.main_ppo"
    return " \\\n".join([head, *lines])
