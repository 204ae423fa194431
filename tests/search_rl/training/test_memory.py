"""Runs that ran out of memory: the key to change, from what is in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_rl.config import load_config
from search_rl.training.memory import memory_fault

CPU = load_config(Path("configs/demo.yaml"))
GPU = load_config(Path("configs/qwen2.5-3b-grpo-8gpu.yaml"))
CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB"
RAY = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."
KILLED = "The actor died: (1) The process is killed by SIGKILL by OOM killer due to high memory usage."


def test_update_that_does_not_fit_names_the_micro_batch() -> None:
    """Would catch advice that names no key, or not its value."""
    fault = memory_fault(CUDA, stage="update", config=GPU)
    assert fault == "out of memory in stage 'update': lower optimizer.micro_batch_tokens=16384"
    fault = memory_fault(RAY, stage="log-probs", config=CPU)
    assert fault is not None
    tokens = CPU.optimizer.micro_batch_tokens
    assert fault.endswith(f"micro_batch_tokens={tokens}, or set model.gradient_checkpointing: true")


def test_real_allocation_failure_is_known() -> None:
    """Would catch a PyTorch that words it in another way."""
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55)
    fault = memory_fault(str(caught.value), stage="rollout", config=CPU)
    assert fault is not None
    assert fault.startswith("out of memory in stage 'rollout': lower rollout.max_concurrent_sequences=64")


def test_killed_process_is_told_as_likely() -> None:
    """Would catch a silent end on a laptop, where the kernel kills before anything can say why."""
    fault = memory_fault(KILLED, stage="start", config=CPU)
    assert fault is not None
    assert fault.startswith(
        "a process died in stage 'start', and memory is the usual reason: lower hardware.kv_cache_gib=1"
    )


def test_cache_without_room_for_an_episode_is_raised_not_lowered() -> None:
    """Would catch the opposite of what helps."""
    log = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
    fault = memory_fault(log, stage="start", config=GPU)
    assert fault is not None
    assert "raise rollout.gpu_memory_share=0.6" in fault


def test_other_failures_are_left_alone() -> None:
    """Would catch advice about memory for a wrong tensor shape."""
    assert memory_fault("RuntimeError: shape mismatch", stage="update", config=GPU) is None
