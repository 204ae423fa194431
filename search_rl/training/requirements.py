"""What an algorithm and a mode need of the rest of the config, told before anything starts."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from search_rl.config import Config
from search_rl.config_algorithm import GROUP_ESTIMATORS
from search_rl.errors import ConfigError


def check_requirements(config: Config) -> None:
    """Raises ConfigError with the first key that does not fit another, and what would."""
    check_sampling(top_p=config.rollout.top_p)
    for faults in (_algorithm_faults, _correction_faults, _mode_faults, _trained_samples_faults, _update_faults):
        for fault in faults(config):
            raise ConfigError(fault)


def check_sampling(*, top_p: float, top_k: int = -1) -> None:
    """Raises ConfigError for training episodes from a part of the policy's distribution.

    verl asks vLLM for `processed_logprobs`: with top_p or top_k they are those of the tokens that were left, scaled up
    to sum to 1, while the trainer's are those of the whole softmax. Every ratio would start below 1, and further below
    where the policy is less sure.
    """
    for key, value, whole in (("top_p", top_p, top_p >= 1), ("top_k", top_k, top_k <= 0)):
        if not whole:
            raise ConfigError(
                f"rollout.{key}={value} leaves out tokens, and what is left has other log-probs than the policy that "
                f"is trained: train with top_p 1 and no top_k, and sharpen with rollout.temperature, which both know of"
            )


def check_installed(config: Config) -> None:
    """Raises ConfigError for a package that the algorithm needs where the run starts."""
    on_gpu = config.hardware.platform == "gpu"
    if on_gpu and config.algorithm.estimator == "gae" and importlib.util.find_spec("flash_attn") is None:
        raise ConfigError(
            "algorithm.estimator=gae: on GPUs verl 0.9.1 builds the critic with flash attention alone: install "
            "flash-attn, or take an algorithm without a critic"
        )


def _algorithm_faults(config: Config) -> Iterator[str]:
    algorithm, samples = config.algorithm, config.rollout.samples_per_prompt
    if samples < 2 and algorithm.estimator in GROUP_ESTIMATORS:
        yield (
            f"algorithm.estimator={algorithm.estimator} compares the answers to one question: "
            f"rollout.samples_per_prompt={samples} must be at least 2"
        )
    if samples < 2 and algorithm.dynamic_sampling:
        yield f"algorithm.dynamic_sampling needs rollout.samples_per_prompt of at least 2, got {samples}"
    if config.model.lora_rank and config.trainer.mode == "separate_async":
        yield (
            f"model.lora_rank={config.model.lora_rank} with trainer.mode=separate_async: verl 0.9.1 would send the "
            f"weights without the adapters; take mode sync or colocate_async, or lora_rank: 0"
        )


def _trained_samples_faults(config: Config) -> Iterator[str]:
    kept, samples, mini = config.algorithm.trained_samples, config.rollout.samples_per_prompt, config.optimizer
    if kept is None:
        return
    key = f"algorithm.trained_samples={kept}"
    if config.algorithm.estimator not in GROUP_ESTIMATORS:
        yield f"{key} chooses among siblings, which algorithm.estimator={config.algorithm.estimator} does not compare"
    if kept > samples:
        yield f"{key} must not be above rollout.samples_per_prompt={samples}"
    if config.trainer.mode == "separate_async":
        yield f"{key}: trainer.mode=separate_async draws its updates by whole groups; take mode sync or colocate_async"
    if mini.mini_batch_prompts * kept % samples:
        yield (
            f"{key}: verl counts an update in whole groups, so optimizer.mini_batch_prompts={mini.mini_batch_prompts} "
            f"times {kept} must be a multiple of rollout.samples_per_prompt={samples}"
        )


def _update_faults(config: Config) -> Iterator[str]:
    """verl asserts this at the first update, after the first rollouts."""
    samples = config.algorithm.trained_samples or config.rollout.samples_per_prompt
    rows, hardware = config.optimizer.mini_batch_prompts * samples, config.hardware
    num_devices = hardware.nodes * hardware.gpus_per_node
    if rows % num_devices:
        yield (
            f"optimizer.mini_batch_prompts={config.optimizer.mini_batch_prompts} times {samples} samples are {rows} "
            f"episodes, which {num_devices} devices cannot share evenly: make it a multiple"
        )


def _correction_faults(config: Config) -> Iterator[str]:
    algorithm, mode = config.algorithm, config.trainer.mode
    if algorithm.loss == "gspo" and not algorithm.recompute_old_logprobs:
        yield (
            "algorithm.loss=gspo clips ratios that differ from 1 by less than sampler and trainer do: it needs "
            "algorithm.recompute_old_logprobs: true"
        )
    if algorithm.importance_weights != "none" and not algorithm.recompute_old_logprobs:
        yield (
            f"algorithm.importance_weights={algorithm.importance_weights} needs algorithm.recompute_old_logprobs: "
            f"true; with false the ratio in the loss is to the policy that sampled, and corrects by itself"
        )
    if mode != "sync" and algorithm.recompute_old_logprobs and algorithm.importance_weights == "none":
        yield (
            f"trainer.mode={mode} trains on samples of older policies and needs a correction: set "
            f"algorithm.importance_weights: token, or algorithm.recompute_old_logprobs: false"
        )


def _mode_faults(config: Config) -> Iterator[str]:
    hardware, mode = config.hardware, config.trainer.mode
    pool = {
        "hardware.rollout_nodes": hardware.rollout_nodes,
        "hardware.rollout_gpus_per_node": hardware.rollout_gpus_per_node,
    }
    if mode != "separate_async":
        for key, value in pool.items():
            if value:
                yield f"{key}={value} is for trainer.mode=separate_async alone, and the mode is {mode}"
        return
    if hardware.platform == "cpu":
        yield (
            "trainer.mode=separate_async samples on devices of its own and moves weights there over NCCL; "
            "hardware.platform=cpu has one device: take mode sync or colocate_async"
        )
    for key, value in pool.items():
        if not value:
            yield f"trainer.mode=separate_async needs devices to sample on: set {key} to at least 1"
