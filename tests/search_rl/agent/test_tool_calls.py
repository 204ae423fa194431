"""The tool-call protocol: what a turn means in each dialect."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_rl.agent.dialect import Dialect, Frame
from search_rl.agent.tool_calls import ToolCallProtocol
from search_rl.types import Action, Answer, Malformed, Question, Search

_FRAME = Frame((1,), "", "", (2,), num_closing=1)
HERMES = ToolCallProtocol("short", Dialect("hermes", _FRAME, _FRAME, frozenset({1})), max_queries=2)
JSON = ToolCallProtocol("short", Dialect("json", _FRAME, _FRAME, frozenset({1}), "parameters"), max_queries=2)
GENERIC = ToolCallProtocol("search_r1", Dialect("generic", _FRAME, _FRAME, frozenset({1})))
CALL = '<tool_call>\n{"name": "search", "arguments": {"queries": ["a", "b"]}}\n</tool_call>'

HERMES_TURNS: list[tuple[str, Action]] = [
    (CALL, Search("a", ("b",))),
    (f"<think>I need <tool_call> tags.</think>\n{CALL}", Search("a", ("b",))),
    (f"{CALL}<answer>Paris</answer>", Search("a", ("b",))),
    (f"<answer>Paris</answer>{CALL}", Answer("Paris")),
    ("<answer>\n Paris </answer><|im_end|>", Answer("Paris")),
    ('<tool_call>{"name": "search", "arguments": {"query": " a "}}</tool_call>', Search("a")),
    ('<tool_call>{"name": "search", "parameters": {"query_list": ["a"]}}</tool_call>', Search("a")),
    ('<tool_call>{"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}</tool_call>', Search("a")),
    ('<tool_call>{"name": "search", "arguments": "a"}</tool_call>', Malformed("the call's arguments are no JSON")),
    ('<tool_call>{"name": "find", "arguments": {"query": "a"}}</tool_call>', Malformed("there is no tool 'find'")),
    ('<tool_call>{"name": "search"}</tool_call>', Malformed("the call has no name or no arguments")),
    ('<tool_call>["search"]</tool_call>', Malformed("the call has no name or no arguments")),
    ('<tool_call>{"name": "search", "arguments": {"q": "a"}}</tool_call>', Malformed("the call has no query")),
    ('<tool_call>{"name": "search", "arguments": {"query": 7}}</tool_call>', Malformed("the call has no query")),
    ('<tool_call>{"name": "search", "arguments": {"query": ["a", 7]}}</tool_call>', Malformed("the call has no query")),
    ('<tool_call>{"name": "search", "arguments": {"queries": ["", " "]}}</tool_call>', Malformed("empty query")),
    (
        '<tool_call>{"name": "search", "arguments": {"queries": ["a", "b", "c"]}}</tool_call>',
        Malformed("3 queries, at most 2 in one turn"),
    ),
    ("<tool_call>search Paris</tool_call>", Malformed("the call is no JSON")),
    ("[" * 100_000 + "</tool_call>", Malformed("</tool_call> without <tool_call> before it")),
    ("<tool_call>" + "[" * 100_000 + "</tool_call>", Malformed("the call is no JSON")),
    (
        '{"name": "search", "arguments": {"query": "a"}}</tool_call>',
        Malformed("</tool_call> without <tool_call> before it"),
    ),
    ('<tool_call>{"name": "search"', Malformed("<tool_call> is never closed")),
    ("<answer>Paris", Malformed("<answer> is never closed")),
    ("Paris</answer>", Malformed("</answer> without <answer> before it")),
    ("<answer> </answer>", Malformed("empty answer")),
    ("Paris, I think.<|im_end|>", Malformed("no call and no answer")),
    ("", Malformed("no call and no answer")),
]
JSON_TURNS: list[tuple[str, Action]] = [
    ('{"name": "search", "parameters": {"queries": ["a", "b"]}}<|eot_id|>', Search("a", ("b",))),
    ('<|python_tag|>{"name": "search", "parameters": {"query": "a"}}<|eom_id|>', Search("a")),
    ('I look it up: {"name": "search", "parameters": {"query": "a {b}"}}', Search("a {b}")),
    ('{"thought": "hm"} {"name": "search", "arguments": {"query": "a"}}', Search("a")),
    ('<answer>{"a": 1}</answer>', Answer('{"a": 1}')),
    ('<answer>Paris</answer>{"name": "search", "parameters": {"query": "a"}}', Answer("Paris")),
    ('{"name": "search", "parameters": {"query": "a"}}<answer>Paris</answer>', Search("a")),
    ('{"name": "find", "parameters": {"query": "a"}}', Malformed("there is no tool 'find'")),
    ('{"name": "search", "parameters": {"query": "a"', Malformed("no call and no answer")),
    ('{"' * 5_000, Malformed("no call and no answer")),
]


@pytest.mark.parametrize(("text", "action"), HERMES_TURNS)
def test_calls_between_tags(text: str, action: Action) -> None:
    """A call that is sent though it is none, one that is missed, or a parser that a model's text can crash."""
    assert HERMES.parse_action(text) == action


@pytest.mark.parametrize(("text", "action"), JSON_TURNS)
def test_bare_calls(text: str, action: Action) -> None:
    """Llama's bare object missed behind other text, or an answer of JSON taken for a call."""
    assert JSON.parse_action(text) == action


_FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    "<answer>",
    "</answer>",
    '{"name": "search", "arguments": {"query": "a"}}',
    '{"name": ',
    "}",
    "Paris",
    " ",
    "é",
]
turn_texts = st.lists(st.sampled_from(_FRAGMENTS), max_size=10).map("".join) | st.text(max_size=30)


@settings(max_examples=100)
@given(turn_texts, turn_texts)
def test_text_behind_the_first_closing_tag_never_matters(text: str, tail: str) -> None:
    """A later tag that changes the action: an engine that stops would then differ from one that does not."""
    ends = [text.find(stop) + len(stop) for stop in HERMES.stop if stop in text]
    if ends:
        assert HERMES.parse_action(text + tail) == HERMES.parse_action(text[: min(ends)])


@settings(max_examples=100)
@given(turn_texts, st.sampled_from([HERMES, JSON, GENERIC]))
def test_an_action_holds_stripped_text_of_the_turn(text: str, protocol: ToolCallProtocol) -> None:
    """A query or an answer that the policy did not write, or an empty one that slips through."""
    match protocol.parse_action(text):
        case Search() as search:
            assert 1 <= len(search.queries) <= protocol.max_queries
            assert all(query and query == query.strip() for query in search.queries)
        case Answer(content):
            assert content
            assert content == content.strip()
            assert content in text
        case Malformed(reason):
            assert reason


@pytest.mark.parametrize("protocol", [HERMES, JSON, GENERIC])
def test_no_text_of_ours_holds_an_action_or_an_answer(protocol: ToolCallProtocol) -> None:
    """A prompt or a correction that a scorer, or a parser of the whole text, could take for the policy's own."""
    prompt = protocol.render_prompt(Question("q", "who wrote Faust", ("Goethe",), "demo"))[0]["content"]
    for text in (prompt, protocol.correction):
        assert not re.search(r"<answer>.*</answer>", text, re.DOTALL)
    assert isinstance(protocol.parse_action(protocol.correction), Malformed)
    assert prompt.endswith("Question: who wrote Faust?\n")


def test_blocks_are_numbered_where_there_are_several() -> None:
    """Passages of two queries that cannot be told apart."""
    assert HERMES.render_passages(["Doc 1"]) == "Doc 1"
    assert HERMES.render_passages(["Doc 1", ""]) == "Query 1:\nDoc 1\nQuery 2:\n"
