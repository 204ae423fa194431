"""How baselines ask, and what of their text counts as the answer."""

from __future__ import annotations

import pytest

from search_rl.evaluation.wordings import CHAIN_OF_THOUGHT, DIRECT, INTERLEAVED, READING, Wording
from search_rl.types import Action, Answer, Malformed, Question, Search

NONE = Malformed("no answer")
CASES: dict[str, tuple[Wording, str, Action]] = {
    "the first line": (DIRECT, "\n Lima \nbecause", Answer("Lima")),
    "tags win over the line": (DIRECT, "I say <answer>Lima</answer>", Answer("Lima")),
    "a lone closing tag": (DIRECT, "Lima</answer>", Answer("Lima")),
    "a fenced line": (DIRECT, "```\nLima\n```", Answer("Lima")),
    "a fence with a language": (READING, "\n  ~~~text\nLima\n~~~", Answer("Lima")),
    "a fence on one line": (DIRECT, "```Lima```", Answer("```Lima```")),
    "a fence of nothing": (DIRECT, "```\n```\n", NONE),
    "tags in a fence": (CHAIN_OF_THOUGHT, "```\n<answer>Lima</answer>\n```", Answer("Lima")),
    "a fence after the reasoning": (CHAIN_OF_THOUGHT, "So the answer is:\n```\nLima.\n```", Answer("Lima")),
    "an end token is not part of it": (DIRECT, "Lima<|im_end|>\n", Answer("Lima")),
    "nothing but an end token": (DIRECT, "<|im_end|>Lima", NONE),
    "spaces": (READING, " \n ", NONE),
    "after the reasoning": (CHAIN_OF_THOUGHT, "Peru is a state. So the answer is: Lima.\nOK", Answer("Lima")),
    "the last statement": (CHAIN_OF_THOUGHT, "The answer is Cusco. No, the answer is Lima", Answer("Lima")),
    "reasoning alone": (CHAIN_OF_THOUGHT, "Peru is a state in South America.", NONE),
    "a statement of nothing": (CHAIN_OF_THOUGHT, "So the answer is:", NONE),
    "a sentence is a query": (INTERLEAVED, "Peru's capital is Lima. ", Search("Peru's capital is Lima.")),
    "an answer ends it": (INTERLEAVED, "So the answer is: Lima.", Answer("Lima")),
    "no sentence": (INTERLEAVED, "\n", Malformed("no sentence")),
}


@pytest.mark.parametrize(("wording", "text", "action"), CASES.values(), ids=CASES)
def test_the_answer_in_the_text(wording: Wording, text: str, action: Action) -> None:
    """A baseline scored 0 for the form of its answer, or credited for words that are none."""
    assert wording.ending_at(("<|im_end|>",)).parse_action(text) == action


def test_passages_stand_between_instructions_and_question() -> None:
    """Passages that are searched for and never shown, or that push the question out."""
    question = Question("q", "capital of Peru", ("Lima",), "demo")
    (message,) = READING.reading("\n\n<information>Doc</information>\n\n").render_prompt(question)
    assert message["content"].startswith(READING.instructions)
    assert message["content"].endswith(
        "nothing else.\n\n<information>Doc</information>\n\nQuestion: capital of Peru?\n"
    )
    assert DIRECT.render_prompt(question)[0]["content"].endswith("nothing else.\nQuestion: capital of Peru?\n")
