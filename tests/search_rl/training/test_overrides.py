"""The verl command of each config, held as a golden file: a change of one key shows as a diff of one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from search_rl.config import load_config
from search_rl.training.overrides import verl_command, verl_overrides

GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize("name", ["demo", "qwen2.5-3b-grpo-8gpu"])
def test_verl_command_is_as_recorded(name: str) -> None:
    """Would catch a training setting that changes without being meant to."""
    command = verl_command(load_config(Path(f"configs/{name}.yaml"))).replace(str(Path.cwd()), "ROOT")
    assert command + "\n" == (GOLDEN / f"{name}.sh").read_text()


def test_strings_are_quoted_where_hydra_needs_it() -> None:
    """Would catch a path or a number-like name that Hydra reads as something else."""
    config = load_config(Path("configs/demo.yaml"), ["model.path=dir with space/a,b", "run.name='true'"])
    lines = verl_overrides(config)
    assert 'actor_rollout_ref.model.path="dir with space/a,b"' in lines
    assert 'trainer.experiment_name="true"' in lines


def test_extra_verl_overrides_come_last() -> None:
    """Would catch a user's own override that a default overrules."""
    config = load_config(Path("configs/demo.yaml"), ["verl=[trainer.balance_batch=False]"])
    assert verl_overrides(config)[-1] == "trainer.balance_batch=False"


@pytest.mark.engine
@pytest.mark.parametrize("name", ["demo", "qwen2.5-3b-grpo-8gpu"])
def test_verl_accepts_every_override(name: str) -> None:
    """Would catch a key that this verl does not know, or one it needs."""
    from search_rl.training.launch import compose

    config = load_config(Path(f"configs/{name}.yaml"))
    config = config.model_copy(update={"reward": {"exact_match": 1.0, "my.rewards:short": -0.5}})
    settings = compose(config, resume=False).actor_rollout_ref.rollout.custom.search_rl
    assert settings.limits.top_k == 3
    assert json.loads(settings.reward) == config.reward
    assert list(settings.retriever.url) == list(config.retriever.urls)
