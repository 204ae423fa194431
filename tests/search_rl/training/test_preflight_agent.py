"""What a run is refused for before it starts: the agent's side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from search_rl.agent.episode import Limits
from search_rl.config import load_config
from search_rl.errors import ConfigError
from search_rl.models import context_tokens
from search_rl.training.overrides import verl_overrides
from search_rl.training.preflight import check_before_training, check_before_warm_up

DEMO = Path("configs/demo.yaml")


def test_dropped_reasoning_is_not_trained() -> None:
    """Would catch log-probs of turns that were sampled after another text than the trainer's sequence."""
    config = load_config(DEMO, ["agent.keep_reasoning=false", "model.path=owner/model"])
    for check in (check_before_training, check_before_warm_up):
        with pytest.raises(ConfigError, match=r"agent.keep_reasoning=false cannot be trained: .* Train with true"):
            check(config)
    with pytest.raises(ConfigError, match="cannot be trained"):
        verl_overrides(config)


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"text_config": {"max_position_embeddings": 4096}}, 4096),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        ({"n_positions": 1024}, None),
    ],
)
def test_the_context_that_a_checkpoint_takes(tmp_path: Path, config: dict[str, Any], longest: int | None) -> None:
    """Would catch a stretched context that is refused, or one counted twice."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert context_tokens(tmp_path) == longest


def test_a_context_too_small_for_the_budgets_names_the_numbers() -> None:
    """Would catch a run that is cut at the model's context in its longest episodes."""
    with pytest.raises(
        ConfigError, match=r"a context of 2048 tokens cannot hold max_prompt_tokens=2048 \+ max_response_tokens=4096"
    ):
        Limits().check_context(2048)
    Limits().check_context(None)


def test_the_trainer_gets_the_whole_switch() -> None:
    """Would catch a run that trains another protocol than the one that is evaluated."""
    config = load_config(DEMO, ["agent.protocol=tool_call", "agent.max_queries=3"])
    prefix = "+actor_rollout_ref.rollout.custom.search_rl.conversation."
    lines = [line.removeprefix(prefix) for line in verl_overrides(config) if line.startswith(prefix)]
    assert lines == ["protocol=tool_call", "prompt=short", "max_queries=3", "keep_reasoning=True"]
