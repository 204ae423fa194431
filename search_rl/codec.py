"""The seam to a tokenizer: text to ids and back, without ever adding a token of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from search_rl.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, str]


class Codec(Protocol):
    """Text to token ids and back."""

    @property
    def special_texts(self) -> tuple[str, ...]:
        """The special tokens as `decode` spells them: no model means one as part of its answer."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of `text` alone: no special token is added, and none that the text spells is recognised."""
        ...

    def encode_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids of a conversation, up to where the assistant begins to write."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, special tokens included; bytes that are no character become U+FFFD."""
        ...


@dataclass(frozen=True, slots=True)
class TransformersCodec:
    """A codec over a transformers tokenizer; one without a chat template gets the bare message texts."""

    tokenizer: PreTrainedTokenizerBase

    @property
    def special_texts(self) -> tuple[str, ...]:
        """See `Codec.special_texts`."""
        return tuple(self.tokenizer.all_special_tokens)

    def encode(self, text: str) -> tuple[int, ...]:
        """See `Codec.encode`: a passage that spells an end-of-turn token stays plain text."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def encode_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """See `Codec.encode_chat`."""
        if not self.tokenizer.chat_template:
            return self.encode("\n".join(message["content"] for message in messages))
        text = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Codec.decode`."""
        return str(
            self.tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )


def load_codec(model_path: str | Path) -> TransformersCodec:
    """The codec of a checkpoint folder or hub id. Raises ModelError when there is no tokenizer."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_path, clean_up_tokenization_spaces=False)
    except (OSError, ValueError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise ModelError(f"no tokenizer in {model_path}: {first_line}") from error
    return TransformersCodec(tokenizer)
