"""How the baselines ask, and how their answers are read; the agent has a protocol of its own.

An answer is what the policy wrote between answer tags; else what follows the last "answer is"; else, for the wordings
that ask for the answer alone, its first line. A line that only opens a code fence is none. Nothing but the policy's own
text is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from search_rl.agent.protocols import TagProtocol
from search_rl.codec import Codec, Message
from search_rl.types import Action, Answer, Malformed, Question, Search

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_STATED = re.compile(r"\banswer is:?", re.IGNORECASE)
_FENCE = re.compile(r"\s*(```|~~~)[\w+-]*\s*")
_CLOSING_TAG = "</answer>"


@dataclass(frozen=True, slots=True)
class Wording(TagProtocol):
    """A protocol in which the policy answers from what its prompt holds.

    `passages` is text that was neutralised. `is_answer_alone` says that the first line is the answer when nothing
    marks one; `special_texts` end what the policy wrote.
    """

    stop: tuple[str, ...] = (_CLOSING_TAG,)
    passages: str = ""
    is_answer_alone: bool = True
    special_texts: tuple[str, ...] = ()

    def reading(self, passages: str) -> Wording:
        """The same with these passages in the prompt."""
        return replace(self, passages=passages)

    def ending_at(self, special_texts: Sequence[str]) -> Wording:
        """The same for a tokenizer with these special tokens."""
        return replace(self, special_texts=tuple(special_texts))

    def render_prompt(self, question: Question) -> list[Message]:
        """One message of the user: the instructions, the passages, the question."""
        (message,) = TagProtocol.render_prompt(self, question)
        content = message["content"]
        if self.passages:
            content = f"{self.instructions}{self.passages}{content.removeprefix(self.instructions).lstrip()}"
        return [{**message, "content": content}]

    @property
    def reading_rules(self) -> dict[str, Any]:
        """What moves a score beside the words of the prompt."""
        return {"is_answer_alone": self.is_answer_alone}

    def parse_action(self, text: str) -> Action:
        """The answer in what the policy wrote."""
        own = _until_special(text, self.special_texts)
        answer = marked_answer(own)
        if answer is None and self.is_answer_alone:
            answer = _first_line(own)
        return Answer(answer) if answer else Malformed("no answer")


@dataclass(frozen=True, slots=True)
class Interleaving(Wording):
    """A protocol in which each sentence of the reasoning is the next query (IRCoT, Trivedi et al. 2022, 2212.10509).

    There the passages found so far are put before the reasoning anew at each sentence, a few solved examples come
    first, and a reader answers at the end. Here they are appended, there is no example, and the same policy answers.
    """

    stop: tuple[str, ...] = (_CLOSING_TAG, "\n", ". ")

    @property
    def reading_rules(self) -> dict[str, Any]:
        """See `Wording.reading_rules`."""
        return {"closing": CLOSING}

    def parse_action(self, text: str) -> Action:
        """An answer, or else the sentence as a query."""
        own = _until_special(text, self.special_texts)
        answer = marked_answer(own)
        if answer:
            return Answer(answer)
        sentence = own.strip()
        return Search(sentence) if sentence else Malformed("no sentence")


@dataclass(frozen=True, slots=True)
class Continuation(Wording):
    """Goes on from given token ids with the question for the answer alone."""

    token_ids: tuple[int, ...] = ()

    def prompt_ids(self, codec: Codec, question: Question) -> tuple[int, ...]:
        """The ids as they are."""
        return self.token_ids


def marked_answer(text: str) -> str | None:
    """The text between the first pair of answer tags, or before a lone closing one, or after the last "answer is";
    None when nothing marks an answer.
    """
    tagged = _TAGGED.search(text)
    if tagged:
        return tagged.group(1).strip()
    before, closing, _ = text.partition(_CLOSING_TAG)
    if closing:
        return before.strip()
    stated = list(_STATED.finditer(text))
    if not stated:
        return None
    return _first_line(text[stated[-1].end() :]).strip("\"'*").removesuffix(".").strip()


def _first_line(text: str) -> str:
    """The first line that holds something and is no code fence, empty where there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip() and not _FENCE.fullmatch(line)), "")


def _until_special(text: str, special_texts: Sequence[str]) -> str:
    ends = [text.find(special) for special in special_texts if special in text]
    return text[: min(ends)] if ends else text


DIRECT = Wording(
    "direct",
    "Answer the question from what you know. Give only the answer, in as few words as possible, and nothing else.",
)
CHAIN_OF_THOUGHT = Wording(
    "cot",
    "Answer the question from what you know. Think step by step, then finish with the line "
    '"So the answer is:" and the answer in as few words as possible.',
    is_answer_alone=False,
)
READING = Wording(
    "reading",
    "Answer the question with the help of the passages. Give only the answer, in as few words as possible, and "
    "nothing else.",
)
INTERLEAVED = Interleaving(
    "ircot",
    "Answer the question step by step, one sentence a line. After each sentence passages that fit it come to you. "
    'As soon as you know the answer, write "So the answer is:" and the answer in as few words as possible.',
)
CLOSING = "\nSo the answer is:"
"""What the policy goes on from when its interleaved sentences are used up."""
