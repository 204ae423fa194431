"""The seam to a tokenizer: text to ids and back, without ever adding a token of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from search_rl.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
Tool = Mapping[str, Any]
"""A function that the model may call, as JSON schema in the form that chat templates take."""

_KEPT_TEXTS = 1024


class Codec(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of `text` alone: no special token is added, and none that the text spells is recognised."""
        ...

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """The ids of a conversation, up to where the assistant begins to write."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, special tokens included; bytes that are no character become U+FFFD."""
        ...


class ChatCodec(Codec, Protocol):
    """A codec that also shows how its model's chat template writes; needed once a model, not once an episode."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The spelling and the id of every special token."""
        ...

    def encode_markup(self, text: str) -> tuple[int, ...]:
        """The ids of text that this program or the template wrote: special tokens in it are recognised."""
        ...

    def render_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str | None:
        """The text of a conversation up to where the assistant begins to write, None without a chat template.

        Raises ModelError for a conversation that the template refuses.
        """
        ...


@dataclass(frozen=True, slots=True)
class TransformersCodec:
    """A codec over a transformers tokenizer; one without a chat template gets the bare message texts.

    The ids of the last 1,024 texts are kept: an episode asks for those of an observation, and of its frame, again.
    """

    tokenizer: PreTrainedTokenizerBase
    _plain_ids: Callable[[str], tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        plain_ids = lru_cache(_KEPT_TEXTS)(partial(_token_ids, self.tokenizer, is_plain=True))
        object.__setattr__(self, "_plain_ids", plain_ids)

    def encode(self, text: str) -> tuple[int, ...]:
        """See `Codec.encode`: a passage that spells an end-of-turn token stays plain text."""
        return self._plain_ids(text)

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """See `Codec.encode_chat`."""
        text = self.render_chat(messages, tools)
        if text is None:
            return self.encode("\n".join(message["content"] for message in messages))
        return self.encode_markup(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Codec.decode`."""
        if self.tokenizer.is_fast:
            return str(self.tokenizer.backend_tokenizer.decode(list(token_ids), skip_special_tokens=False))
        return str(
            self.tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """See `ChatCodec.special_tokens`."""
        added = self.tokenizer.added_tokens_decoder.items()
        return {token.content: token_id for token_id, token in added if token.special}

    def encode_markup(self, text: str) -> tuple[int, ...]:
        """See `ChatCodec.encode_markup`."""
        return _token_ids(self.tokenizer, text, is_plain=False)

    def render_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str | None:
        """See `ChatCodec.render_chat`."""
        from jinja2 import TemplateError

        if not self.tokenizer.chat_template:
            return None
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tools=[dict(tool) for tool in tools] or None,
                    tokenize=False,
                    add_generation_prompt=True,
                )
            )
        except (TemplateError, TypeError) as error:
            raise ModelError(f"the model's chat template refuses a conversation: {error}") from error


def _token_ids(tokenizer: PreTrainedTokenizerBase, text: str, *, is_plain: bool) -> tuple[int, ...]:
    """What `tokenizer.encode` gives without special tokens added; those that a plain text spells are not recognised.

    A fast tokenizer is asked past transformers, which hands a single text over as a batch, at twice the time.
    """
    if not tokenizer.is_fast:
        return tuple(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=is_plain))
    backend = tokenizer.backend_tokenizer
    # Others share the tokenizer, and leave it as their last text needed it.
    if backend.truncation is not None:
        backend.no_truncation()
    if backend.padding is not None:
        backend.no_padding()
    backend.encode_special_tokens = is_plain
    return tuple(backend.encode(text, add_special_tokens=False).ids)


def load_codec(model_path: str | Path) -> TransformersCodec:
    """The codec of a checkpoint folder or hub id. Raises ModelError when there is no tokenizer."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_path, clean_up_tokenization_spaces=False)
    except (OSError, ValueError) as error:
        first_line = str(error).strip().split("\n")[0].strip(" :")
        raise ModelError(
            f"no tokenizer in {model_path}: save it beside the weights (tokenizer.json); the loader says: {first_line}"
        ) from error
    return TransformersCodec(tokenizer)
