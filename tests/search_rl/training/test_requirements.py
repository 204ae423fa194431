"""Algorithms and modes that do not fit the rest of the config are refused before anything starts, in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from search_rl.config import load_config
from search_rl.config_algorithm import AlgorithmName
from search_rl.errors import ConfigError
from search_rl.training.requirements import check_requirements

CPU, GPU = Path("configs/demo.yaml"), Path("configs/qwen2.5-3b-grpo-8gpu.yaml")
ASYNC = "trainer.mode=colocate_async"
SEPARATE = ["trainer.mode=separate_async", "algorithm.recompute_old_logprobs=false"]
POOL = ["hardware.rollout_nodes=1", "hardware.rollout_gpus_per_node=4"]


@pytest.mark.parametrize("path", [CPU, GPU])
@pytest.mark.parametrize("name", get_args(AlgorithmName))
def test_every_algorithm_runs_on_every_config_of_the_project(path: Path, name: str) -> None:
    """Would catch a preset that its own checks refuse."""
    check_requirements(load_config(path, [f"algorithm.name={name}"]))


@pytest.mark.parametrize(
    ("path", "overrides", "message"),
    [
        (CPU, ["rollout.samples_per_prompt=1"], "rollout.samples_per_prompt=1 must be at least 2"),
        (
            CPU,
            ["rollout.samples_per_prompt=1", "algorithm.name=ppo", "algorithm.dynamic_sampling=true"],
            "algorithm.dynamic_sampling needs rollout.samples_per_prompt",
        ),
        (CPU, ["algorithm.name=gspo", "algorithm.recompute_old_logprobs=false"], "algorithm.loss=gspo"),
        (CPU, ["algorithm.importance_weights=token"], "needs algorithm.recompute_old_logprobs: true"),
        (CPU, [ASYNC, "algorithm.recompute_old_logprobs=true"], "set algorithm.importance_weights: token"),
        (CPU, SEPARATE, "hardware.platform=cpu has one device: take mode sync or colocate_async"),
        (GPU, SEPARATE, "needs devices to sample on: set hardware.rollout_nodes to at least 1"),
        (GPU, POOL, "hardware.rollout_nodes=1 is for trainer.mode=separate_async alone"),
        (GPU, [*SEPARATE, *POOL, "model.lora_rank=8"], "would send the weights without the adapters"),
        (CPU, ["algorithm.name=ppo", "algorithm.trained_samples=4"], "which algorithm.estimator=gae does not compare"),
        (CPU, ["algorithm.trained_samples=9"], "must not be above rollout.samples_per_prompt=8"),
        (
            CPU,
            ["algorithm.trained_samples=3", "optimizer.mini_batch_prompts=4"],
            "optimizer.mini_batch_prompts=4 times 3",
        ),
        (GPU, ["hardware.nodes=3"], "1280 episodes, which 24 devices cannot share evenly"),
        (GPU, [*SEPARATE, *POOL, "algorithm.trained_samples=2"], "draws its updates by whole groups"),
        (CPU, ["rollout.top_p=0.95"], "rollout.top_p=0.95 leaves out tokens"),
    ],
)
def test_what_does_not_fit_is_named_with_what_would(path: Path, overrides: list[str], message: str) -> None:
    """Would catch a run that pays its whole start, or trains on wrong ratios, before it finds out."""
    with pytest.raises(ConfigError) as caught:
        check_requirements(load_config(path, overrides))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "overrides"),
    [
        (CPU, ["rollout.samples_per_prompt=1", "algorithm.name=ppo"]),
        (CPU, [ASYNC]),
        (CPU, [ASYNC, "algorithm.recompute_old_logprobs=true", "algorithm.importance_weights=sequence"]),
        (CPU, ["model.lora_rank=8", ASYNC]),
        (GPU, [*SEPARATE, *POOL]),
    ],
)
def test_what_fits_is_let_through(path: Path, overrides: list[str]) -> None:
    """Would catch a check that refuses too much."""
    check_requirements(load_config(path, overrides))


def test_dry_run_refuses_too() -> None:
    """Would catch a printed command that cannot run."""
    command = [sys.executable, "-m", "search_rl.cli.main", "train", str(CPU), "--dry-run"]
    result = subprocess.run(
        [*command, "--set", "trainer.mode=separate_async"], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
