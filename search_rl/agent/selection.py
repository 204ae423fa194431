"""Which protocol a model talks: chosen by name, fitted to its tokenizer, and checked before anything is sampled."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import lru_cache

from search_rl.agent.dialect import dialect_of
from search_rl.agent.protocols import AgentProtocol, protocol_named
from search_rl.agent.tool_calls import ToolCallProtocol, search_tool
from search_rl.codec import ChatCodec
from search_rl.errors import ModelError, unknown_name

PROTOCOL_NAMES = ("tags", "tool_call")

_logger = logging.getLogger(__name__)


@lru_cache(maxsize=8)
def protocol_for(
    codec: ChatCodec, *, protocol: str, prompt: str, max_queries: int, keep_reasoning: bool
) -> AgentProtocol:
    """The protocol of that name in the wording `prompt`, in the dialect of the codec's model.

    Raises ConfigError for an unknown name, ModelError for a template or a vocabulary that the protocol cannot use.
    """
    tags = protocol_named(prompt)
    chosen: AgentProtocol
    if protocol == "tags":
        chosen = replace(tags, max_queries=max_queries, keep_reasoning=keep_reasoning)
    elif protocol == "tool_call":
        dialect = dialect_of(codec, search_tool(max_queries))
        chosen = ToolCallProtocol(prompt, dialect, max_queries=max_queries, keep_reasoning=keep_reasoning)
        if not dialect.is_native:
            _logger.warning("the model's template knows no tools: the prompt explains the call (%s)", chosen.label)
    else:
        raise unknown_name("agent.protocol", protocol, PROTOCOL_NAMES)
    check_vocabulary(codec, chosen)
    return chosen


def check_vocabulary(codec: ChatCodec, protocol: AgentProtocol) -> None:
    """Raise ModelError when a piece of the protocol does not survive the way to tokens and back."""
    for piece in (*protocol.pieces, protocol.correction):
        spelled = codec.decode(codec.encode(piece))
        if spelled.strip() != piece.strip():
            raise ModelError(
                f"the model's vocabulary cannot spell {piece!r} (it becomes {spelled!r}), so protocol "
                f"{protocol.label} cannot be used: choose a model with a byte-level or byte-fallback tokenizer"
            )
