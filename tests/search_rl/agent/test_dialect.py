"""What is read off real chat templates, and that observations continue them token for token."""

from __future__ import annotations

import json

import pytest

from search_rl.agent.dialect import dialect_of
from search_rl.agent.tool_calls import ToolCallProtocol, search_tool
from search_rl.codec import Message
from search_rl.errors import ModelError
from search_rl.types import Answer, Observation, Question, Search, SearchResult
from tests.search_rl.agent.families import FAMILIES, FamilyCodec, qwen2_5, qwen3, tekken_base

QUESTION = Question("q", "Who wrote Faust?", ("Goethe",), "demo")
PASSAGES = 'Doc 1(Title: "Faust") Faust is a play by Goethe, "the" poet.\nDoc 2(Title: "東京") naïve 🙂'
NATIVE = ["qwen2_5", "qwen3", "llama3_1", "llama3_2"]


def protocol_of(codec: FamilyCodec, max_queries: int = 1) -> ToolCallProtocol:
    return ToolCallProtocol("short", dialect_of(codec, search_tool(max_queries)), max_queries=max_queries)


def conversation(protocol: ToolCallProtocol, *turns: Message) -> list[Message]:
    return [*protocol.render_prompt(QUESTION), *turns]


def call_turn(query: str) -> Message:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "search", "arguments": {"query": query}}}],
    }


@pytest.mark.parametrize(
    ("family", "style"),
    [
        ("qwen2_5", "hermes"),
        ("qwen3", "hermes"),
        ("llama3_1", "json"),
        ("llama3_2", "json"),
        ("gemma3", "generic"),
        ("tekken_base", "plain"),
    ],
)
def test_the_style_of_each_family(family: str, style: str) -> None:
    """A model that is told to call tools in a form that it never saw."""
    dialect = dialect_of(FAMILIES[family](), search_tool(1))
    assert dialect.style == style
    assert dialect.arguments_key == ("parameters" if style == "json" else "arguments")


@pytest.mark.parametrize("family", NATIVE)
def test_an_episode_is_the_templates_own_rendering(family: str) -> None:
    """An observation whose tokens the template would not have written: a lost line break, a second end of turn."""
    codec = FAMILIES[family]()
    protocol = protocol_of(codec)
    observation = Observation(PASSAGES, (SearchResult("Faust author", ()),))
    call = protocol.reply_ids(codec, Search("Faust author"))
    ids = protocol.prompt_ids(codec, QUESTION) + call + protocol.observation_ids(codec, observation, after=call)
    turns = conversation(protocol, call_turn("Faust author"), {"role": "tool", "name": "search", "content": PASSAGES})
    text = codec.render(turns, [search_tool(1)])
    assert codec.decode(ids) == text
    assert ids == codec.encode_markup(text)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "tekken_base"])
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_correction_is_the_templates_own_user_turn(family: str, is_closed: bool) -> None:
    """A correction in the policy's own turn, or behind two ends of turn when the policy ended its turn itself."""
    codec = FAMILIES[family]()
    protocol = protocol_of(codec)
    frame = protocol.dialect.user_frame
    words = codec.encode("I think it was Goethe.") + (frame.head_ids[: frame.num_closing] if is_closed else ())
    correction = protocol.observation_ids(codec, Observation(protocol.correction), after=words)
    ids = protocol.prompt_ids(codec, QUESTION) + words + correction
    turns = conversation(
        protocol,
        {"role": "assistant", "content": "I think it was Goethe."},
        {"role": "user", "content": protocol.correction},
    )
    tools = [search_tool(1)] if protocol.dialect.is_native else []
    assert ids == codec.encode_markup(codec.render(turns, tools))


def test_the_frame_without_tools_is_a_user_turn() -> None:
    """Gemma, which refuses a tool turn and two user turns in a row."""
    codec = FAMILIES["gemma3"]()
    protocol = protocol_of(codec)
    call = protocol.reply_ids(codec, Search("Faust"))
    shown = codec.decode(protocol.observation_ids(codec, Observation("Doc", (SearchResult("Faust", ()),)), after=call))
    assert shown == (
        "<end_of_turn>\n<start_of_turn>user\n<tool_response>\nDoc\n</tool_response><end_of_turn>\n"
        "<start_of_turn>model\n"
    )
    prompt = codec.decode(protocol.prompt_ids(codec, QUESTION))
    assert prompt.startswith("<bos><start_of_turn>user\nAnswer the question.")
    assert '<tool_call>{"name": "search", "arguments": {"query": "…"}}</tool_call>' in prompt


def test_without_a_template_everything_is_text() -> None:
    """A base model that is given control tokens it does not have."""
    codec = tekken_base()
    protocol = protocol_of(codec)
    call = protocol.reply_ids(codec, Search("Faust"))
    observation = Observation("Doc", (SearchResult("Faust", ()),))
    ids = call + protocol.observation_ids(codec, observation, after=call)
    assert codec.decode(ids) == (
        '<tool_call>\n{"name": "search", "arguments": {"query": "Faust"}}\n</tool_call>'
        "\n\n<tool_response>\nDoc\n</tool_response>\n\n"
    )
    assert codec.decode(protocol.prompt_ids(codec, QUESTION)).endswith("\nQuestion: Who wrote Faust?\n")


@pytest.mark.parametrize("family", FAMILIES)
def test_an_observation_holds_no_control_token_of_a_passage(family: str) -> None:
    """A passage that spells an end of turn and speaks as the user from there."""
    codec = FAMILIES[family]()
    protocol = protocol_of(codec)
    results = (SearchResult("q", ()),)
    evil = " ".join(codec.special_tokens)
    clean = protocol.observation_ids(codec, Observation("", results), after=())
    spelled = protocol.observation_ids(codec, Observation(evil, results), after=())
    special_ids = set(codec.special_tokens.values())
    assert [i for i in spelled if i in special_ids] == [i for i in clean if i in special_ids]
    assert evil in codec.decode(spelled).replace('\\"', '"')


@pytest.mark.parametrize("family", FAMILIES)
def test_a_demonstrated_turn_ends_where_an_engine_stops(family: str) -> None:
    """A warm-up that teaches a call without an end: the model then writes on to its limit."""
    codec = FAMILIES[family]()
    protocol = protocol_of(codec, max_queries=3)
    for action in (Search("a", ("b", 'c "d"')), Search("naïve 東京"), Answer("Paris")):
        ids = protocol.reply_ids(codec, action)
        text = codec.decode(ids)
        assert protocol.parse_action(text) == action
        assert text.endswith(protocol.stop) or protocol.dialect.is_closed(ids)


def test_qwens_tags_are_single_tokens_and_the_end_of_turn_comes_from_the_environment() -> None:
    """Tags that are spelled out of pieces where the model has a token for them."""
    codec = qwen3()
    protocol = protocol_of(codec)
    call = protocol.reply_ids(codec, Search("Faust"))
    assert call[0] == 151657
    assert call[-1] == 151658
    observation = protocol.observation_ids(codec, Observation("Doc", (SearchResult("Faust", ()),)), after=call)
    assert observation[0] == codec.special_tokens["<|im_end|>"]
    assert 151665 in observation
    assert 151666 in observation


def test_a_template_that_loses_a_turn_is_refused() -> None:
    """An episode whose passages the model never sees, with nobody told why."""
    silent = FamilyCodec(qwen2_5().encoding, qwen2_5().special_tokens, template="{{ messages[0]['content'] }}")
    with pytest.raises(ModelError, match="leaves out a turn"):
        dialect_of(silent, search_tool(1))


def test_a_template_that_refuses_conversations_is_named() -> None:
    """A traceback from the template engine at the first question."""
    closed = FamilyCodec(qwen2_5().encoding, {}, template="{{ raise_exception('one turn only') }}")
    with pytest.raises(ModelError, match="one turn only"):
        dialect_of(closed, search_tool(1))


def test_an_unknown_form_of_call_falls_back_to_the_explained_one() -> None:
    """Mistral's list of calls taken for Llama's bare object."""
    form = (
        "{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS][{{ m.tool_calls[0].function | tojson }}]<|im_end|>"
        "{% else %}{{ m.role }}: {{ m.content }}<|im_end|>{% endif %}{% endfor %}{{ tools | tojson }}"
    )
    codec = FamilyCodec(qwen2_5().encoding, qwen2_5().special_tokens, template=form)
    assert dialect_of(codec, search_tool(1)).style == "generic"


def test_the_tool_is_described_to_the_model() -> None:
    """A limit on queries that the schema does not tell."""
    tool = search_tool(3)
    argument = tool["function"]["parameters"]["properties"]["queries"]
    assert argument["maxItems"] == 3
    prompt = qwen2_5().decode(protocol_of(qwen2_5(), 3).prompt_ids(qwen2_5(), QUESTION))
    assert json.dumps(argument) in prompt
