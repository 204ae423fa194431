"""What a run that ran out of memory should change, read from what it left in its logs."""

from __future__ import annotations

import re

from search_rl.config import Config

CERTAIN = re.compile(
    r"(?:CUDA|HIP) out of memory|torch\.(?:cuda\.)?OutOfMemoryError|DefaultCPUAllocator: can't allocate memory"
    r"|\bMemoryError\b|ray\.exceptions\.OutOfMemoryError|killed due to the node running low on memory|std::bad_alloc"
)
"""PyTorch on GPUs and CPUs, Python, Ray's memory monitor, C++."""
LIKELY = re.compile(r"killed by SIGKILL by OOM killer|exit code -9\b|SIGKILL")
"""Ray's words for a process that is gone: nearly always the kernel's answer to memory that is gone."""
NO_ROOM_FOR_CACHE = re.compile(
    r"No available memory for the cache blocks|KV cache is needed|larger than the available KV cache"
)


def memory_fault(log: str, *, stage: str, config: Config) -> str | None:
    """One line for the user when `log` tells of memory, else None; `stage` is the run's last sign of life."""
    if NO_ROOM_FOR_CACHE.search(log):
        return f"vLLM has no room for the keys and values of one episode: {_raise_cache(config)}"
    if CERTAIN.search(log):
        return f"out of memory in stage {stage!r}: lower {_keys(stage, config)}"
    if LIKELY.search(log):
        return f"a process died in stage {stage!r}, and memory is the usual reason: lower {_keys(stage, config)}"
    return None


def _raise_cache(config: Config) -> str:
    if config.hardware.platform == "cpu":
        key = f"raise hardware.kv_cache_gib={config.hardware.kv_cache_gib}"
    else:
        key = f"raise rollout.gpu_memory_share={config.rollout.gpu_memory_share}"
    return f"{key}, or lower agent.max_response_tokens={config.agent.max_response_tokens}"


def _keys(stage: str, config: Config) -> str:
    """The keys that the memory of a stage hangs on, with the values they have."""
    cache = (
        f"hardware.kv_cache_gib={config.hardware.kv_cache_gib}"
        if config.hardware.platform == "cpu"
        else f"rollout.gpu_memory_share={config.rollout.gpu_memory_share}"
    )
    if stage in ("update", "log-probs"):
        return f"optimizer.micro_batch_tokens={config.optimizer.micro_batch_tokens}" + _or_checkpointing(config)
    if stage == "rollout":
        return f"rollout.max_concurrent_sequences={config.rollout.max_concurrent_sequences} or {cache}"
    return f"{cache}" + _or_offload(config)


def _or_checkpointing(config: Config) -> str:
    return "" if config.model.gradient_checkpointing else ", or set model.gradient_checkpointing: true"


def _or_offload(config: Config) -> str:
    on_cpu = config.hardware.platform == "cpu"
    return ", or take a smaller model" if on_cpu or config.hardware.offload else ", or set hardware.offload: true"
