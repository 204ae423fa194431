"""Dropping what the policy thought in earlier turns, with real tokenizers."""

from __future__ import annotations

import pytest

from search_rl.agent.reasoning import without_reasoning
from tests.search_rl.agent.families import VOCABULARIES


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize(
    ("turn", "shown"),
    [
        ("<think>\nhm, 東京 🙂\n</think>\n\n<search>q</search>", "<search>q</search>"),
        ("<think>a</think><search>q</search>", "<search>q</search>"),
        ("<think>a</think>b <think>c</think>d", "b <think>c</think>d"),
        ("still thinking</think>\n\n<search>q</search>", "</think>\n\n<search>q</search>"),
        ("<think>never closed <search>q</search>", "<think>never closed <search>q</search>"),
        ("<search>q</search>", "<search>q</search>"),
        ("<think>a</think>", ""),
    ],
)
def test_a_turn_without_its_thought(vocabulary: str, turn: str, shown: str) -> None:
    """A thought that stays, a query that goes with it, or half a tag, whatever the tokens are cut like."""
    codec = VOCABULARIES[vocabulary]()
    ids = codec.encode(turn)
    kept = without_reasoning(codec, ids)
    assert codec.decode(kept) == shown
    assert kept == ids or len(kept) < len(ids)


def test_tokens_behind_the_thought_are_the_sampled_ones() -> None:
    """What stays being encoded again: the policy would see other tokens than it wrote."""
    codec = VOCABULARIES["qwen"]()
    unusual = tuple(token_id for letter in "Paris" for token_id in codec.encode(letter))
    ids = codec.encode("<think>a</think>\n\n") + unusual
    assert codec.encode("Paris") != unusual
    assert without_reasoning(codec, ids) == unusual
