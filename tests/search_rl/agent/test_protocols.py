"""The tag protocol: what a turn means, and what no text but the policy's may say."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from search_rl.agent.protocols import PROTOCOLS, STOP, neutralise, parse_action, protocol_named
from search_rl.errors import ConfigError
from search_rl.types import Action, Answer, Malformed, Question, Search
from tests.search_rl.conftest import ByteCodec

_FRAGMENTS = [
    "<search>",
    "</search>",
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
    " ",
    "\n",
    "a",
    "Paris",
    "<",
    "é",
]
turn_texts = st.lists(st.sampled_from(_FRAGMENTS), max_size=12).map("".join) | st.text(max_size=30)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<search> capital of France\n</search>", Search("capital of France")),
        ("<think>easy</think>\n<answer>\n Paris </answer>", Answer("Paris")),
        ("<answer>two\nlines</answer>", Answer("two\nlines")),
        ("<answer>Paris</answer> <search>more</search>", Answer("Paris")),
        ("<search>q</search><answer>Paris</answer>", Search("q")),
        ("I use <search> tags. <search>q</search>", Search("q")),
        ("<search>a <answer>b</answer>", Answer("b")),
        ("<answer>a <search>b</search>", Search("b")),
        ("<answer>3 < 4 and 5 > 4</answer>", Answer("3 < 4 and 5 > 4")),
        ("", Malformed("no search and no answer")),
        ("Paris, I think.", Malformed("no search and no answer")),
        ("<search>q", Malformed("<search> is never closed")),
        ("<answer>Par", Malformed("<answer> is never closed")),
        ("<search>q</answer>", Malformed("</answer> without <answer> before it")),
        ("q</search>", Malformed("</search> without <search> before it")),
        ("</search><search>q</search>", Malformed("</search> without <search> before it")),
        ("<search> \n\t</search>", Malformed("empty query")),
        ("<answer></answer>", Malformed("empty answer")),
        ("<SEARCH>q</SEARCH>", Malformed("no search and no answer")),
    ],
)
def test_parse_action_by_example(text: str, action: Action) -> None:
    """A search that wins over an earlier answer (D5), an empty query that is sent, a thought that becomes the
    query.
    """
    assert parse_action(text) == action


@settings(max_examples=150)
@given(turn_texts, turn_texts)
@example("<answer>a</answer>", "<search>b</search>")
def test_text_behind_the_first_closing_tag_never_matters(text: str, tail: str) -> None:
    """A later tag that changes the action: what an engine that stops gives would then differ from one that
    does not.
    """
    ends = [text.find(stop) + len(stop) for stop in STOP if stop in text]
    if ends:
        assert parse_action(text + tail) == parse_action(text[: min(ends)])


@settings(max_examples=150)
@given(turn_texts)
def test_an_action_holds_stripped_text_of_the_turn(text: str) -> None:
    """A query or an answer that the policy did not write, or an empty one that slips through."""
    match parse_action(text):
        case Search(content) | Answer(content):
            assert content
            assert content == content.strip()
            assert content in text
            assert not any(stop in content for stop in STOP)
        case Malformed(reason):
            assert reason


@pytest.mark.parametrize("name", PROTOCOLS)
def test_no_text_of_ours_holds_a_complete_answer(name: str) -> None:
    """Search-R1's prompt holds an example answer: an episode without one then scored as "Beijing"."""
    protocol = PROTOCOLS[name]
    prompt = protocol.render_prompt(Question("q", "who wrote Faust", ("Goethe",), "demo"))[0]["content"]
    for text in (prompt, protocol.correction, protocol.instructions):
        assert not re.search(r"<answer>.*</answer>", text, re.DOTALL)
    assert "<search>" not in protocol.correction
    assert isinstance(parse_action(protocol.correction), Malformed)
    assert prompt.endswith("Question: who wrote Faust?\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("who? ", "who?"), ("  who", "who?"), ("Name it.", "Name it."), ("Go!", "Go!"), ("", "?")],
)
def test_a_question_mark_is_added_only_where_nothing_ends_the_question(text: str, shown: str) -> None:
    """Full stop and question mark in a row, which the policy never sees in other questions."""
    prompt = PROTOCOLS["short"].render_prompt(Question("q", text, (), "demo"))
    assert prompt[0]["content"].endswith(f"\nQuestion: {shown}\n")


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("<answer>x</answer>", "[answer]x[/answer]"),
        ("</information>", "[/information]"),
        ("< / Answer >", "[ / Answer ]"),
        ("<ans<answer>wer>", "<ans[answer]wer>"),
        ("<THINK/>", "[THINK/]"),
        ("a < b > c <b>bold</b>", "a < b > c <b>bold</b>"),
    ],
)
def test_neutralise_by_example(text: str, harmless: str) -> None:
    """A passage that closes its own block, or answers in the policy's place, in any spelling."""
    assert neutralise(text) == harmless


@settings(max_examples=150)
@given(turn_texts)
def test_neutralise_leaves_no_tag_and_keeps_the_length(text: str) -> None:
    """Two halves of a tag that a removal would bring together."""
    harmless = neutralise(text)
    assert not re.search(r"</?(think|search|information|answer)>", harmless)
    assert len(harmless) == len(text)
    assert neutralise(harmless) == harmless


def test_an_unknown_protocol_names_the_nearest() -> None:
    """A bare KeyError at the command line."""
    assert protocol_named("short") is PROTOCOLS["short"]
    with pytest.raises(ConfigError, match=r"unknown protocol 'search-r1': did you mean 'search_r1'\?"):
        protocol_named("search-r1")


def test_the_prompt_is_laid_out_as_search_r1s() -> None:
    """Would catch a question in front or without its mark, a system turn, and a thought begun for the policy."""
    question = Question("q", "capital of France", ("Paris",), "demo")
    (message,) = PROTOCOLS["search_r1"].render_prompt(question)
    assert message["role"] == "user"
    instructions, asked = message["content"].split("\n")[:2]
    assert asked == "Question: capital of France?"
    assert message["content"].endswith("?\n")
    named = ["<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>"]
    assert re.findall(r"</?\w+>", instructions) == named


def test_prompt_ids_encode_the_rendered_prompt(codec: ByteCodec) -> None:
    """A prompt that is cut, or special tokens that the template did not ask for."""
    question = Question("q", "capital of France", ("Paris",), "demo")
    text = codec.decode(PROTOCOLS["search_r1"].prompt_ids(codec, question))
    assert text == f"user: {PROTOCOLS['search_r1'].render_prompt(question)[0]['content']}\n"
