"""How the policy and the environment talk, and Search-R1's way: four tags as plain text (Jin et al., 2503.09516).

A turn ends at the first closing tag of either kind, which is also where engines stop: `parse_action` never
looks behind it. The prompt spells no complete answer pair, so it holds nothing that a scorer could take for
an answer. The other way, a model family's own tool calls, is in tool_calls.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from search_rl.codec import Codec, Message
from search_rl.errors import unknown_name
from search_rl.types import Action, Answer, Malformed, Observation, Question, Search

STOP = ("</search>", "</answer>")

_CLOSING = re.compile(r"</(search|answer)>")
_PROTOCOL_TAG = re.compile(
    r"<(\s*/?\s*(?:think|search|information|answer|tool_call|tool_response)\s*/?\s*|\|[^<>|\n]*\|)>", re.IGNORECASE
)

_SEARCH_R1_INSTRUCTIONS = """\
Find the answer to the question at the end. Each time you receive new information, first reason about it \
between the tags <think> and </think>. When you notice that a fact is missing, ask the search engine: put a \
query between the tags <search> and </search>, then wait. The best matching passages come back to you \
between the tags <information> and </information>. You may search as many times as you need. As soon as \
nothing is missing, finish: write <answer>, then only the answer in as few words as possible (a name, a \
number or a date, with no explanation), then close this tag in the same way as the others."""

_SHORT_INSTRUCTIONS = """\
Answer the question. To look something up, write a query between <search> and </search>; passages come back \
in <information>. Search again if a fact is missing. Then open <answer>, write a few words, and close it."""


class AgentProtocol(Protocol):
    """One way to talk. It is a value: the same for every episode of a model."""

    @property
    def label(self) -> str:
        """The protocol in one word, for reports."""
        ...

    @property
    def max_queries(self) -> int:
        """How many queries a turn may hold."""
        ...

    @property
    def keep_reasoning(self) -> bool:
        """False when the policy does not see what it thought in earlier turns; such episodes cannot be trained on."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Where engines stop; a turn also ends where the model ends its own turn."""
        ...

    @property
    def pieces(self) -> tuple[str, ...]:
        """Texts that the model's vocabulary must be able to spell."""
        ...

    @property
    def correction(self) -> str:
        """What a turn without an action is told."""
        ...

    def prompt_ids(self, codec: Codec, question: Question) -> tuple[int, ...]:
        """The prompt as tokens, up to where the policy begins to write."""
        ...

    def parse_action(self, text: str) -> Action:
        """The action of one policy turn."""
        ...

    def render_passages(self, blocks: Sequence[str]) -> str:
        """The text of an observation: one block of passages, already neutralised, for each query."""
        ...

    def observation_ids(self, codec: Codec, observation: Observation, *, after: Sequence[int]) -> tuple[int, ...]:
        """The tokens of an observation behind the policy's tokens `after`, up to where the policy goes on.

        They are longest when `after` is empty.
        """
        ...

    def reply_ids(self, codec: Codec, action: Search | Answer) -> tuple[int, ...]:
        """The tokens with which a policy takes an action and ends its turn: for demonstrations."""
        ...


@dataclass(frozen=True, slots=True)
class TagProtocol:
    """One wording of the tag protocol; the wordings differ in their instructions only.

    With `max_queries` over 1 a search may hold several, one a line.
    """

    name: str
    instructions: str
    max_queries: int = 1
    keep_reasoning: bool = True

    stop: tuple[str, ...] = STOP

    @property
    def label(self) -> str:
        """See `AgentProtocol.label`."""
        return "tags"

    @property
    def pieces(self) -> tuple[str, ...]:
        """See `AgentProtocol.pieces`: every tag, complete."""
        kinds = ("search", "information", "answer")
        return tuple(tag for kind in kinds for tag in (f"<{kind}>", f"</{kind}>"))

    @property
    def correction(self) -> str:
        """See `AgentProtocol.correction`."""
        queries = "a query" if self.max_queries == 1 else f"1 to {self.max_queries} queries, one a line,"
        return (
            f"\n\nThat turn held no complete action. To look something up, put {queries} inside the search tags. "
            "To finish, put the final answer inside the answer tags. Close the tag that you open. Try again.\n\n"
        )

    def render_prompt(self, question: Question) -> list[Message]:
        """One user message: the instructions, then the question."""
        several = "" if self.max_queries == 1 else f" A search may hold up to {self.max_queries} queries, one a line."
        return question_message(self.instructions + several, question)

    def prompt_ids(self, codec: Codec, question: Question) -> tuple[int, ...]:
        """See `AgentProtocol.prompt_ids`."""
        return codec.encode_chat(self.render_prompt(question))

    def parse_action(self, text: str) -> Action:
        """See the function `parse_action`."""
        return parse_action(text, max_queries=self.max_queries)

    def render_passages(self, blocks: Sequence[str]) -> str:
        """See `AgentProtocol.render_passages`; policies learn these tags by heart."""
        return "\n\n" + "\n".join(f"<information>{block}</information>" for block in blocks) + "\n\n"

    def observation_ids(self, codec: Codec, observation: Observation, *, after: Sequence[int]) -> tuple[int, ...]:
        """See `AgentProtocol.observation_ids`: the text alone, whatever stands before it."""
        return codec.encode(observation.text)

    def reply_ids(self, codec: Codec, action: Search | Answer) -> tuple[int, ...]:
        """See `AgentProtocol.reply_ids`."""
        if isinstance(action, Answer):
            return codec.encode(f"<answer>{action.text}</answer>")
        return codec.encode("<search>" + "\n".join(action.queries) + "</search>")


def question_message(instructions: str, question: Question) -> list[Message]:
    """One user message: the instructions, then the question.

    A question that ends without punctuation gets a question mark; Search-R1 adds one after a full stop too.
    """
    text = question.text.strip()
    mark = "" if text.endswith((".", "?", "!")) else "?"
    return [{"role": "user", "content": f"{instructions}\nQuestion: {text}{mark}\n"}]


def parse_action(text: str, *, max_queries: int = 1) -> Action:
    """The action of one policy turn, decided by its first closing tag.

    The content reaches back to the nearest opening tag of the same kind, so that a tag mentioned while
    thinking does not swallow the thought. (Search-R1 lets a search win over an earlier answer, and begins at
    the first opening tag.) Where one query is allowed its lines are one query.
    """
    closing = _CLOSING.search(text)
    if closing is None:
        opened = next((kind for kind in ("search", "answer") if f"<{kind}>" in text), None)
        return Malformed(f"<{opened}> is never closed" if opened else "no search and no answer")
    kind = closing.group(1)
    _, opening, content = text[: closing.start()].rpartition(f"<{kind}>")
    if not opening:
        return Malformed(f"</{kind}> without <{kind}> before it")
    content = content.strip()
    if kind == "answer":
        return Answer(content) if content else Malformed("empty answer")
    return search_for(content.splitlines() if max_queries > 1 else [content], max_queries)


def search_for(queries: Sequence[str], max_queries: int) -> Search | Malformed:
    """The search for all `queries` that are not blank, in order; none at all and too many are malformed."""
    stripped = [query.strip() for query in queries if query.strip()]
    if not stripped:
        return Malformed("empty query")
    if len(stripped) > max_queries:
        return Malformed(f"{len(stripped)} queries, at most {max_queries} in one turn")
    return Search(stripped[0], tuple(stripped[1:]))


def neutralise(text: str) -> str:
    """`text` with protocol tags and control tokens in square brackets, so that retrieved text cannot speak for
    either side.

    `<answer>` becomes `[answer]` and `<|im_end|>` becomes `[|im_end|]`: as readable, as long, and no tag in any
    spelling of case or inner spaces.
    """
    return _PROTOCOL_TAG.sub(r"[\1]", text)


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        TagProtocol("search_r1", _SEARCH_R1_INSTRUCTIONS),
        TagProtocol("short", _SHORT_INSTRUCTIONS),
    )
}


def protocol_named(name: str) -> TagProtocol:
    """The tag protocol in the wording of that name. Raises ConfigError, which names the nearest one."""
    if name not in PROTOCOLS:
        raise unknown_name("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
