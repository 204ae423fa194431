"""How a model's own chat template writes a tool call and its result, read off the template itself.

A dummy conversation with marked texts is rendered. What the template puts between the end of the assistant's
words and the beginning of the result, and after the result, is the frame in which observations are given: so
the tokens that the policy sampled are never rendered and encoded again (invariant 1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from search_rl.codec import ChatCodec, Codec, Message, Tool
from search_rl.errors import ModelError

Style = Literal["hermes", "json", "generic", "plain"]

CALL_TAGS = ("<tool_call>", "</tool_call>")
RESULT_TAGS = ("<tool_response>", "</tool_response>")

_QUESTION, _WORDS, _QUERY = "QUESTION-7f3a", "WORDS-7f3a", "QUERY-7f3a"
_CONTENT = 'RESULT-7f3a "quoted"\nEND-7f3a'
_CALL_ID = "call7f3a0"  # nine letters and digits, as Mistral's templates want


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around a message to the policy: special tokens outside, plain text next to the content.

    `head_ids` begins with the `num_closing` tokens that end the policy's turn. Tokens and text meet where the
    template has a special token, so that the ids are those of the whole rendering.
    """

    head_ids: tuple[int, ...]
    before: str
    after: str
    tail_ids: tuple[int, ...]
    num_closing: int = 0
    is_json: bool = False

    def encode(self, codec: Codec, content: str, *, is_closed: bool) -> tuple[int, ...]:
        """The ids around and of `content`; `is_closed` when the policy ended its turn itself."""
        shown = json.dumps(content, ensure_ascii=False) if self.is_json else content
        head_ids = self.head_ids[self.num_closing :] if is_closed else self.head_ids
        return head_ids + codec.encode(f"{self.before}{shown}{self.after}") + self.tail_ids


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one model calls tools.

    `hermes`: JSON between tags (Qwen2.5, Qwen3, Hermes). `json`: the bare JSON object is the turn (Llama 3.x).
    `generic`: the template knows no tools (SmolLM2, Gemma 3, Llama 3.0), so the prompt explains Hermes' tags and the
    result is a user turn. `plain`: no chat template, everything is text.
    """

    style: Style
    tool_frame: Frame
    user_frame: Frame
    special_ids: frozenset[int]
    arguments_key: str = "arguments"

    @property
    def is_native(self) -> bool:
        """True when the template itself tells the model about its tools."""
        return self.style in ("hermes", "json")

    def is_closed(self, token_ids: Sequence[int]) -> bool:
        """True when the policy's last token is a special one: it ended its turn itself."""
        return bool(token_ids) and token_ids[-1] in self.special_ids


def dialect_of(codec: ChatCodec, tool: Tool) -> Dialect:
    """The dialect of a model that is to call `tool`. Raises ModelError for a template without user turns."""
    special_tokens = codec.special_tokens
    special_ids = frozenset(special_tokens.values())
    talk = codec.render_chat([_user(_QUESTION), {"role": "assistant", "content": _WORDS}, _user(_CONTENT)])
    if talk is None:
        user_frame = Frame((), "\n\n", "\n\n", ())
        return Dialect("plain", _tagged(user_frame), user_frame, special_ids)
    if _WORDS not in talk or _CONTENT not in talk:
        raise ModelError("the model's chat template leaves out a turn, so that an episode cannot be written with it")
    user_frame = _frame(codec, talk, talk.index(_WORDS) + len(_WORDS), _CONTENT, special_tokens)
    native = _native(codec, tool, user_frame)
    return native or Dialect("generic", _tagged(user_frame), user_frame, special_ids)


def _native(codec: ChatCodec, tool: Tool, user_frame: Frame) -> Dialect | None:
    """The dialect of a template that renders tools, calls and results in a form known here, else None."""
    function = tool["function"]
    (argument,) = function["parameters"]["properties"]
    call = {"name": function["name"], "arguments": {argument: _QUERY}}
    turns: list[Message] = [
        _user(_QUESTION),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "id": _CALL_ID, "function": call}],
        },
        {"role": "tool", "name": function["name"], "tool_call_id": _CALL_ID, "content": _CONTENT},
    ]
    try:
        text = codec.render_chat(turns, [tool])
    except ModelError:
        return None
    contents = (_CONTENT, json.dumps(_CONTENT, ensure_ascii=False))
    content = next((content for content in contents if text and content in text), None)
    if text is None or content is None or function["description"] not in text or _QUERY not in text:
        return None
    found = _call_in(text, function["name"])
    if found is None:
        return None
    style, key, end = found
    special_tokens = codec.special_tokens
    frame = replace(_frame(codec, text, end, content, special_tokens), is_json=content != _CONTENT)
    if not frame.num_closing:
        return None
    return Dialect(style, frame, user_frame, frozenset(special_tokens.values()), arguments_key=key)


def _call_in(text: str, name: str) -> tuple[Style, str, int] | None:
    """The style of the dummy call, the key of its arguments, and where it ends; None for an unknown form."""
    start = text.rfind(f'{{"name": "{name}"', 0, text.index(_QUERY))
    if start < 0:
        return None
    try:
        call, end = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        return None
    key = next((key for key in ("arguments", "parameters") if key in call), None)
    if key is None:
        return None
    closing = re.compile(r"\s*" + CALL_TAGS[1]).match(text, end)
    if closing and text[:start].rstrip().endswith(CALL_TAGS[0]):
        return "hermes", key, closing.end()
    return "json", key, end


def _frame(codec: ChatCodec, text: str, end: int, content: str, special_tokens: Mapping[str, int]) -> Frame:
    """The frame around `content`, which stands behind the policy's words that end at `end`."""
    start = text.index(content, end)
    before, after = text[end:start], text[start + len(content) :]
    special = re.compile("|".join(map(re.escape, sorted(special_tokens, key=len, reverse=True))) or r"(?!)")
    head_end = max((match.end() for match in special.finditer(before)), default=0)
    first_special = special.search(after)
    tail_start = first_special.start() if first_special else len(after)
    closing = special.match(before)
    return Frame(
        head_ids=codec.encode_markup(before[:head_end]),
        before=before[head_end:],
        after=after[:tail_start],
        tail_ids=codec.encode_markup(after[tail_start:]),
        num_closing=len(codec.encode_markup(closing.group())) if closing else 0,
    )


def _tagged(frame: Frame) -> Frame:
    """The frame of a tool result where a user turn must do: the content between tags."""
    return replace(frame, before=f"{frame.before}{RESULT_TAGS[0]}\n", after=f"\n{RESULT_TAGS[1]}{frame.after}")


def _user(content: str) -> Message:
    return {"role": "user", "content": content}
