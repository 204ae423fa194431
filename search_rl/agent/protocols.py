"""How the policy and the environment talk: Search-R1's four tags as plain text (Jin et al., 2503.09516).

A turn ends at the first closing tag of either kind, which is also where engines stop: `parse_action` never
looks behind it. The prompt spells no complete answer pair, so it holds nothing that a scorer could take for
an answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from search_rl.codec import Codec, Message
from search_rl.errors import unknown_name
from search_rl.types import Action, Answer, Malformed, Question, Search

STOP = ("</search>", "</answer>")

_CLOSING = re.compile(r"</(search|answer)>")
_PROTOCOL_TAG = re.compile(r"<(\s*/?\s*(?:think|search|information|answer)\s*/?\s*)>", re.IGNORECASE)

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


@dataclass(frozen=True, slots=True)
class TagProtocol:
    """One wording of the tag protocol; the wordings differ in their instructions only."""

    name: str
    instructions: str

    stop: tuple[str, ...] = STOP
    correction: str = (
        "\n\nThat turn held no complete action. To look something up, put a query inside the search tags. "
        "To finish, put the final answer inside the answer tags. Close the tag that you open. Try again.\n\n"
    )

    def render_prompt(self, question: Question) -> list[Message]:
        """One user message: the instructions, then the question.

        A question that ends without punctuation gets a question mark; Search-R1 adds one after a full stop
        too.
        """
        text = question.text.strip()
        mark = "" if text.endswith((".", "?", "!")) else "?"
        return [{"role": "user", "content": f"{self.instructions}\nQuestion: {text}{mark}\n"}]

    def prompt_ids(self, codec: Codec, question: Question) -> tuple[int, ...]:
        """The prompt as tokens, up to where the policy begins to write."""
        return codec.encode_chat(self.render_prompt(question))

    def parse_action(self, text: str) -> Action:
        """See the function `parse_action`."""
        return parse_action(text)

    def render_passages(self, passages: str) -> str:
        """The observation around passages that were already neutralised; policies learn it by heart."""
        return f"\n\n<information>{passages}</information>\n\n"


def parse_action(text: str) -> Action:
    """The action of one policy turn, decided by its first closing tag.

    The content reaches back to the nearest opening tag of the same kind, so that a tag mentioned while
    thinking does not swallow the thought. (Search-R1 lets a search win over an earlier answer, and begins at
    the first opening tag.)
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
    if not content:
        return Malformed("empty query" if kind == "search" else "empty answer")
    return Search(content) if kind == "search" else Answer(content)


def neutralise(text: str) -> str:
    """`text` with its protocol tags in square brackets, so that retrieved text cannot speak for either side.

    `<answer>` becomes `[answer]`: as readable, as long, and no tag in any spelling of case or inner spaces.
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
    """The protocol of that name. Raises ConfigError, which names the nearest one."""
    if name not in PROTOCOLS:
        raise unknown_name("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
