"""The model family's own way to use a tool: a JSON call, its result as a tool turn. The answer keeps its tags.

One call a turn, which may hold several queries: the first closing tag ends the turn, as in the tag protocol, so
that nothing is sampled behind it. In the dialect without tags (Llama 3.x) the model ends its turn itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_rl.agent.dialect import CALL_TAGS, RESULT_TAGS, Dialect
from search_rl.agent.protocols import question_message, search_for
from search_rl.codec import Codec, Message, Tool
from search_rl.types import Action, Answer, Malformed, Observation, Question, Search

TOOL_NAME = "search"

_ANSWER_CLOSE = "</answer>"
_ARGUMENTS = ("query", "queries", "query_list")
_ANSWER_IN_WORDS = "open <answer>, write only the answer in as few words as possible, and close it."
_INSTRUCTIONS = {
    "search_r1": (
        "Find the answer to the question at the end. Reason first between the tags <think> and </think> each time you "
        f"learn something new. When a fact is missing, call the tool {TOOL_NAME}: it returns the best matching "
        "passages. You may search as many times as you need. As soon as nothing is missing, finish: "
        f"{_ANSWER_IN_WORDS}"
    ),
    "short": (
        f"Answer the question. To look something up, call the tool {TOOL_NAME}; search again if a fact is missing. "
        f"Then {_ANSWER_IN_WORDS}"
    ),
}


def search_tool(max_queries: int) -> Tool:
    """The search tool as JSON schema, for one query or for a list of at most `max_queries`."""
    argument: dict[str, Any]
    if max_queries == 1:
        argument = {"query": {"type": "string", "description": "What to look for."}}
    else:
        argument = {
            "queries": {
                "type": "array",
                "items": {"type": "string"},
                "maxItems": max_queries,
                "description": "What to look for; each query gets its own passages.",
            }
        }
    return {
        "type": "function",
        "function": {
            "name": TOOL_NAME,
            "description": "Search a collection of texts and return the passages that fit best.",
            "parameters": {"type": "object", "properties": argument, "required": list(argument)},
        },
    }


@dataclass(frozen=True, slots=True)
class ToolCallProtocol:
    """One wording (`search_r1` or `short`) of the tool-call protocol in one model's dialect."""

    name: str
    dialect: Dialect
    max_queries: int = 1
    keep_reasoning: bool = True

    @property
    def label(self) -> str:
        """See `AgentProtocol.label`."""
        return f"tool_call/{self.dialect.style}"

    @property
    def stop(self) -> tuple[str, ...]:
        """See `AgentProtocol.stop`."""
        return (_ANSWER_CLOSE,) if self.dialect.style == "json" else (CALL_TAGS[1], _ANSWER_CLOSE)

    @property
    def pieces(self) -> tuple[str, ...]:
        """See `AgentProtocol.pieces`."""
        tags = () if self.dialect.style == "json" else (*CALL_TAGS, *RESULT_TAGS)
        return (*tags, "<answer>", _ANSWER_CLOSE, self._call(Search("a")))

    @property
    def correction(self) -> str:
        """See `AgentProtocol.correction`."""
        queries = "one query" if self.max_queries == 1 else f"1 to {self.max_queries} queries"
        return (
            f"That turn held no complete action. To look something up, call the tool {TOOL_NAME} with {queries}. "
            "To finish, put the final answer inside the answer tags and close them. Try again."
        )

    def render_prompt(self, question: Question) -> list[Message]:
        """One user message; it explains the call where the model's template does not."""
        instructions = _INSTRUCTIONS[self.name]
        if not self.dialect.is_native:
            instructions += f"\n{self._explanation}"
        return question_message(instructions, question)

    def prompt_ids(self, codec: Codec, question: Question) -> tuple[int, ...]:
        """See `AgentProtocol.prompt_ids`."""
        tools = (search_tool(self.max_queries),) if self.dialect.is_native else ()
        return codec.encode_chat(self.render_prompt(question), tools)

    def parse_action(self, text: str) -> Action:
        """The action of one policy turn, decided by what is closed first: a call or an answer."""
        call_end, call = _first_object(text) if self.dialect.style == "json" else _first_tagged(text)
        answer_end = text.find(_ANSWER_CLOSE)
        if answer_end >= 0 and not 0 <= call_end < answer_end:
            return _answer(text[:answer_end])
        if call_end < 0:
            opened = next((tag for tag in (CALL_TAGS[0], "<answer>") if tag in text), None)
            return Malformed(f"{opened} is never closed" if opened else "no call and no answer")
        return _search(call, self.max_queries)

    def render_passages(self, blocks: Sequence[str]) -> str:
        """See `AgentProtocol.render_passages`: the blocks are numbered where there are several."""
        if len(blocks) == 1:
            return blocks[0]
        return "\n".join(f"Query {number}:\n{block}" for number, block in enumerate(blocks, start=1))

    def observation_ids(self, codec: Codec, observation: Observation, *, after: Sequence[int]) -> tuple[int, ...]:
        """See `AgentProtocol.observation_ids`: passages are a tool turn, a correction is a user turn."""
        frame = self.dialect.tool_frame if observation.results else self.dialect.user_frame
        return frame.encode(codec, observation.text, is_closed=self.dialect.is_closed(after))

    def reply_ids(self, codec: Codec, action: Search | Answer) -> tuple[int, ...]:
        """See `AgentProtocol.reply_ids`: where no tag ends the turn, the model's own end of turn does."""
        if isinstance(action, Answer):
            return codec.encode(f"<answer>{action.text}{_ANSWER_CLOSE}")
        call_ids = codec.encode(self._call(action))
        frame = self.dialect.tool_frame
        return call_ids + (frame.head_ids[: frame.num_closing] if self.dialect.style == "json" else ())

    def _call(self, action: Search) -> str:
        """The call as the model's template writes it."""
        arguments = {"query": action.query} if self.max_queries == 1 else {"queries": action.queries}
        call = json.dumps({"name": TOOL_NAME, self.dialect.arguments_key: arguments}, ensure_ascii=False)
        return call if self.dialect.style == "json" else f"{CALL_TAGS[0]}\n{call}\n{CALL_TAGS[1]}"

    @property
    def _explanation(self) -> str:
        """What a template with tools would say."""
        value = '"…"' if self.max_queries == 1 else '["…"]'
        argument = "query" if self.max_queries == 1 else "queries"
        limit = "" if self.max_queries == 1 else f" with up to {self.max_queries} queries"
        return (
            f'A call{limit} is {CALL_TAGS[0]}{{"name": "{TOOL_NAME}", "arguments": {{"{argument}": {value}}}}}'
            f"{CALL_TAGS[1]}; its result comes in {RESULT_TAGS[0]}."
        )


def _answer(text: str) -> Answer | Malformed:
    """The answer whose closing tag stands behind `text`."""
    _, opening, content = text.rpartition("<answer>")
    if not opening:
        return Malformed("</answer> without <answer> before it")
    return Answer(content.strip()) if content.strip() else Malformed("empty answer")


def _first_tagged(text: str) -> tuple[int, object]:
    """Where the first closing tag of a call begins, and the JSON (or the reason why there is none) before it."""
    end = text.find(CALL_TAGS[1])
    _, opening, content = text[: max(end, 0)].rpartition(CALL_TAGS[0])
    if not opening:
        return end, f"{CALL_TAGS[1]} without {CALL_TAGS[0]} before it"
    try:
        return end, json.loads(content)
    except (ValueError, RecursionError):
        return end, "the call is no JSON"


def _first_object(text: str) -> tuple[int, object]:
    """Where the first JSON object that names a function ends, and that object; -1 when there is none."""
    decoder = json.JSONDecoder()
    for start in re.finditer(r'\{\s*"', text):
        try:
            value, end = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue
        if "name" in value:
            return end - 1, value
    return -1, None


def _search(call: object, max_queries: int) -> Search | Malformed:
    """The search that a call asks for; `call` may be the reason why there is none."""
    match call:
        case str(reason):
            return Malformed(reason)
        case {"name": str(name)} if name != TOOL_NAME:
            return Malformed(f"there is no tool {name!r}")
        case {"name": str(), "arguments": arguments} | {"name": str(), "parameters": arguments}:
            return _queries(arguments, max_queries)
    return Malformed("the call has no name or no arguments")


def _queries(arguments: Any, max_queries: int) -> Search | Malformed:
    """The queries among a call's arguments; some models write the arguments as a string of JSON."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return Malformed("the call's arguments are no JSON")
    given = arguments if isinstance(arguments, Mapping) else {}
    value = next((given[name] for name in _ARGUMENTS if name in given), None)
    queries = [value] if isinstance(value, str) else value
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        return Malformed("the call has no query")
    return search_for(queries, max_queries)
