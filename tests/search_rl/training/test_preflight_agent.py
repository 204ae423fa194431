"""What a run is refused for before it starts: the agent's side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_rl.agent.episode import Limits
from search_rl.agent.selection import protocol_for
from search_rl.codec import TransformersCodec
from search_rl.config import load_config
from search_rl.errors import ConfigError, DataError
from search_rl.models import context_tokens
from search_rl.training.overrides import verl_overrides
from search_rl.training.preflight import (
    check_before_training,
    check_before_warm_up,
    check_enough,
    check_prompts,
)
from search_rl.types import Question
from tests.search_rl.agent.families import llama3_1, qwen2_5, tekken_base

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


@pytest.mark.parametrize("family", [qwen2_5, llama3_1, tekken_base])
def test_question_longer_than_the_prompt_budget_is_named_whatever_its_length_in_letters(
    family: Callable[[], TransformersCodec],
) -> None:
    """Only the question of most bytes was looked at: one of fewer bytes and more tokens ended the run in its middle."""
    codec = family()
    protocol = protocol_for(codec, protocol="tags", prompt="short", max_queries=1, keep_reasoning=True)
    long, rare, fits = (
        Question(name, text, ("x",), "toy")
        for name, text in (("long", "where is it " * 30), ("rare", "\u1680\u0d9e" * 50), ("fits", "who?"))
    )
    sizes = {question.id: len(protocol.prompt_ids(codec, question)) for question in (long, rare, fits)}
    assert len(rare.text.encode()) < len(long.text.encode()) and sizes["rare"] > sizes["long"]
    with pytest.raises(DataError, match=rf"q.parquet: the prompt of question 'rare' has {sizes['rare']} tokens"):
        check_prompts(codec, protocol, [fits, long, rare], sizes["rare"] - 1, Path("q.parquet"))
    check_prompts(codec, protocol, [fits, long, rare], sizes["rare"], Path("q.parquet"))


@given(text=st.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_prompt_that_may_be_over_its_budget_is_encoded(text: str) -> None:
    """A bound by bytes that is none: a question over its budget would be let through unread."""
    for codec in (qwen2_5(), llama3_1(), tekken_base()):
        protocol = protocol_for(codec, protocol="tags", prompt="short", max_queries=1, keep_reasoning=True)
        question = Question("1", text, ("x",), "toy")
        num_tokens = len(protocol.prompt_ids(codec, question))
        with pytest.raises(DataError):
            check_prompts(codec, protocol, [question], num_tokens - 1, Path("q"))


def test_small_train_files_are_enough_together() -> None:
    """Each file had to hold a step of its own: two of three questions were refused where a step takes six."""
    check_enough(6, 6)
    with pytest.raises(ConfigError, match=r"data.train has 6 questions in all, fewer than rollout.prompts_per_step=7"):
        check_enough(6, 7)
