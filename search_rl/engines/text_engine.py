"""Sampling from a served model that speaks text alone: `/v1/completions` or `/v1/chat/completions`.

For evaluation, never for training: what the server wrote is encoded here with a tokenizer that need not be its own, so
that budgets and counts hold in that tokenizer's tokens, and log-probs are unknown and written as 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from search_rl.codec import Codec, Message, Tool
from search_rl.engines.base import Generation, Sampling
from search_rl.engines.endpoint import Endpoint
from search_rl.engines.http_engine import COMPLETIONS, first_choice

CHAT = "/chat/completions"

# Ids that no tokenizer has: they stand around each turn of the policy, so that a chat can be read from ids alone.
TURN_BEGIN = 2**30
TURN_END = 2**30 + 1


@dataclass(frozen=True, slots=True)
class TextEngine:
    """An engine on `/v1/completions`; the prompt goes out as text, its chat template applied."""

    endpoint: Endpoint
    model: str
    sampling: Sampling
    codec: Codec

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`. Raises RequestError for nonsense too."""
        body = {
            "model": self.model,
            "prompt": self.codec.decode(prompt_ids),
            "max_tokens": max_tokens,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "stop": list(stop),
        }
        content = await self.endpoint.post(COMPLETIONS, body)
        choice = first_choice(content, _Completion, f"{self.endpoint.url}{COMPLETIONS}")
        text = completed(choice.text, stop, is_cut=choice.finish_reason == "length")
        return _generation(_token_ids(text, self.codec)[:max_tokens])


@dataclass(frozen=True, slots=True)
class MarkedCodec:
    """A codec for chats that the server renders: no template, and turns that are marked in the ids."""

    inner: Codec

    def encode(self, text: str) -> tuple[int, ...]:
        """See `Codec.encode`."""
        return self.inner.encode(text)

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """The texts of the messages, which become one message of the user."""
        return self.inner.encode("\n\n".join(message["content"] for message in messages))

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Codec.decode`; marks have no text."""
        return self.inner.decode([token_id for token_id in token_ids if token_id not in (TURN_BEGIN, TURN_END)])

    def messages(self, token_ids: Sequence[int]) -> list[Message]:
        """The chat that the ids hold: the policy's turns are the assistant's, all else is the user's."""
        messages: list[Message] = []
        begin = 0
        for position, token_id in enumerate((*token_ids, TURN_BEGIN)):
            if token_id in (TURN_BEGIN, TURN_END):
                role = "user" if token_id == TURN_BEGIN else "assistant"
                content = self.inner.decode(token_ids[begin:position]).strip()
                messages += [{"role": role, "content": content}] if content else []
                begin = position + 1
        return messages


@dataclass(frozen=True, slots=True)
class ChatEngine:
    """An engine on `/v1/chat/completions`: policy turns go out as the assistant's, observations as the user's."""

    endpoint: Endpoint
    model: str
    sampling: Sampling
    codec: MarkedCodec

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`; the two marks of a turn count as its tokens."""
        body = {
            "model": self.model,
            "messages": self.codec.messages(prompt_ids),
            "max_tokens": max_tokens,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "stop": list(stop),
        }
        content = await self.endpoint.post(CHAT, body)
        choice = first_choice(content, _Chat, f"{self.endpoint.url}{CHAT}")
        text = completed(choice.message.content or "", stop, is_cut=choice.finish_reason == "length")
        token_ids = _token_ids(text, self.codec)[: max(max_tokens - 2, 0)]
        return _generation((TURN_BEGIN, *token_ids, TURN_END)[:max_tokens])


def completed(text: str, stop: Sequence[str], *, is_cut: bool) -> str:
    """`text` up to its first stop string, which is put back where the server left it out.

    Servers do not say which stop string it was: a closing tag is put back where its opening one stands alone, unless
    the text `is_cut` by its budget.
    """
    ends = [text.find(string) + len(string) for string in stop if string in text]
    if ends:
        return text[: min(ends)]
    closing = (string for string in stop if string.startswith("</") and string.endswith(">"))
    left_out = "" if is_cut else next((string for string in closing if string.replace("</", "<") in text), "")
    return text + left_out


def _token_ids(text: str, codec: Codec) -> tuple[int, ...]:
    """The ids of a turn; a model that wrote nothing gets a line break, for a turn has a token."""
    return codec.encode(text or "\n")


def _generation(token_ids: Sequence[int]) -> Generation:
    return Generation(tuple(token_ids), (0.0,) * len(token_ids))


class _Choice(BaseModel):
    text: str
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_Choice]


class _Reply(BaseModel):
    content: str | None = None


class _ChatChoice(BaseModel):
    message: _Reply
    finish_reason: str | None = None


class _Chat(BaseModel):
    choices: list[_ChatChoice]
