"""The switch between protocols, and what it refuses before anything is sampled."""

from __future__ import annotations

from typing import Any

import pytest
import tiktoken

from search_rl.agent.protocols import PROTOCOLS, TagProtocol
from search_rl.agent.selection import protocol_for
from search_rl.config import AgentSection
from search_rl.errors import ConfigError, ModelError
from search_rl.types import Malformed, Search
from tests.search_rl.agent.families import FAMILIES, FamilyCodec, qwen2_5, tekken_base


def chosen(codec: FamilyCodec, **changes: Any) -> Any:
    return protocol_for(codec, **{**AgentSection().conversation, **changes})


def test_one_key_switches_the_protocol() -> None:
    """A switch that one of the callers does not honour, or that loses the wording."""
    assert chosen(qwen2_5()) == PROTOCOLS["search_r1"]
    assert chosen(qwen2_5(), prompt="short") == PROTOCOLS["short"]
    assert chosen(qwen2_5(), protocol="tool_call").label == "tool_call/hermes"
    assert chosen(tekken_base(), protocol="tool_call").label == "tool_call/plain"
    with pytest.raises(ConfigError, match=r"unknown agent.protocol 'tool_calls': did you mean 'tool_call'\?"):
        chosen(qwen2_5(), protocol="tool_calls")
    with pytest.raises(ConfigError, match="did you mean 'short'"):
        chosen(qwen2_5(), protocol="tool_call", prompt="shrot")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("protocol", ["tags", "tool_call"])
def test_every_family_speaks_both(family: str, protocol: str) -> None:
    """A vocabulary check that refuses a real model."""
    assert chosen(FAMILIES[family](), protocol=protocol, max_queries=3).max_queries == 3


@pytest.mark.parametrize("protocol", ["tags", "tool_call"])
def test_a_vocabulary_that_lacks_a_tag_piece_is_named(protocol: str) -> None:
    """A run in which no turn can ever be an action, because the model has no < to write."""
    letters = {bytes([byte]): byte for byte in range(256) if chr(byte) != "<"}

    class NoBracket(FamilyCodec):
        """Drops what it cannot spell, as a word-piece vocabulary does."""

        def encode(self, text: str) -> tuple[int, ...]:
            """See Codec."""
            return super().encode(text.replace("<", ""))

    encoding = tiktoken.Encoding("letters", pat_str=".", mergeable_ranks=letters, special_tokens={"<": 256})
    with pytest.raises(ModelError, match=r"vocabulary cannot spell '<(search|tool_call)>' \(it becomes '\w+>'\)"):
        chosen(NoBracket(encoding, {}), protocol=protocol)


def test_several_queries_in_tags_stand_on_lines() -> None:
    """Two queries sent as one, or a limit that is not kept."""
    protocol: TagProtocol = chosen(qwen2_5(), max_queries=2)
    assert protocol.parse_action("<search> a \n\n b</search>") == Search("a", ("b",))
    assert protocol.parse_action("<search>a\nb\nc</search>") == Malformed("3 queries, at most 2 in one turn")
    assert PROTOCOLS["short"].parse_action("<search>a\nb</search>") == Search("a\nb")
    assert "up to 2 queries, one a line" in protocol.render_prompt(_question())[0]["content"]
    assert protocol.render_passages(["Doc 1", "Doc 2"]) == (
        "\n\n<information>Doc 1</information>\n<information>Doc 2</information>\n\n"
    )
    assert qwen2_5().decode(protocol.reply_ids(qwen2_5(), Search("a", ("b",)))) == "<search>a\nb</search>"


def _question() -> Any:
    from search_rl.types import Question

    return Question("q", "who", ("x",), "demo")
