"""Presets behind `algorithm.name`: what they fill in, and what a user's own keys do to them."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from search_rl.config import load_config
from search_rl.config_algorithm import PRESETS, AlgorithmName, AlgorithmSection
from search_rl.errors import ConfigError

DEMO = Path("configs/demo.yaml")


def test_every_name_has_a_preset() -> None:
    """Would catch a name that is accepted and trains as something else."""
    assert set(PRESETS) == set(get_args(AlgorithmName))


def test_name_fills_the_section_and_a_given_key_wins() -> None:
    """Would catch a preset that overrules the user, and one that stops at its first key."""
    section = AlgorithmSection.model_validate({"name": "dapo", "clip_high": 0.3})
    assert (section.clip_low, section.clip_high, section.dynamic_sampling) == (0.2, 0.3, True)
    assert (section.estimator, section.overlong_penalty) == ("grpo", 1.0)


def test_another_algorithm_does_not_inherit_the_files_keys() -> None:
    """Would catch GSPO with the clip range that the demo chose for GRPO, a thousand times too wide."""
    config = load_config(DEMO, ["algorithm.clip_low=0.001", "algorithm.name=gspo"])
    assert (config.algorithm.clip_low, config.algorithm.clip_high) == (0.001, 4e-4)
    assert config.algorithm.recompute_old_logprobs


def test_the_files_own_algorithm_keeps_its_keys() -> None:
    """Would catch `--set algorithm.name=grpo` on a GRPO config that resets it."""
    assert load_config(DEMO, ["algorithm.name=grpo"]).algorithm == load_config(DEMO).algorithm


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.name=grop", "algorithm.name: Input should be 'grpo'"),
        ("algorithm.name=[ppo]", "algorithm.name: Input should be 'grpo'"),
        ("algorithm.estimater=rloo", "unknown key algorithm.estimater: did you mean estimator?"),
        ("algorithm=ppo", "algorithm: Input should be a valid dictionary"),
        ("algorithm.clip_high=0", "algorithm.clip_high: Input should be greater than 0 (got 0)"),
        ("algorithm.clip_high=.inf", "algorithm.clip_high: Input should be a finite number (got inf)"),
        ("critic.learning_rate=-1", "critic.learning_rate: Input should be greater than 0 (got -1)"),
    ],
)
def test_mistakes_are_named(override: str, message: str) -> None:
    """Would catch a preset that hides a mistake, or a traceback out of filling it in."""
    with pytest.raises(ConfigError) as caught:
        load_config(DEMO, [override])
    assert message in str(caught.value)
