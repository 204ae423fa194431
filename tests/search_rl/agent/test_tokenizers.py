"""What real tokenizers do at the borders that the protocols draw in text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from search_rl.agent.environment import fit_observation
from search_rl.agent.episode import Limits, run_episode
from search_rl.agent.protocols import AgentProtocol
from search_rl.agent.selection import protocol_for
from search_rl.config import AgentSection
from search_rl.engines.base import Generation
from search_rl.engines.scripted import ScriptedEngine
from search_rl.types import Question, Search, SearchResult, StopReason, Trajectory
from tests.search_rl.agent.families import VOCABULARIES, FamilyCodec
from tests.search_rl.conftest import FixedSearcher, hit

QUESTION = Question("q1", "what is the capital of France", ("Paris",), "demo")
LIMITS = Limits(max_turns=2, max_turn_tokens=60, max_observation_tokens=120, max_response_tokens=600)


def tags(codec: FamilyCodec) -> AgentProtocol:
    return protocol_for(codec, **AgentSection().conversation)


def play(
    codec: FamilyCodec, replies: Sequence[str | Generation], limits: Limits = LIMITS, protocol: str = "tags"
) -> Trajectory:
    conversation = {**AgentSection().conversation, "protocol": protocol}
    return asyncio.run(
        run_episode(
            QUESTION,
            engine=ScriptedEngine(replies, codec),
            searcher=FixedSearcher((hit("Paris", "Paris is the capital of France."),)),
            codec=codec,
            protocol=protocol_for(codec, **conversation),
            limits=limits,
        )
    )


def sampled(token_ids: Sequence[int]) -> Generation:
    return Generation(tuple(token_ids), (-0.5,) * len(token_ids))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_tag_is_found_however_it_is_cut_into_tokens(vocabulary: str) -> None:
    """A stop that looks for the tag's usual tokens: policies spell tags in many ways (letter by letter here)."""
    codec = VOCABULARIES[vocabulary]()
    usual = codec.encode("<answer>Paris</answer>")
    letters = tuple(i for letter in "<answer>Paris</answer>" for i in codec.encode(letter))
    assert usual != letters
    for token_ids in (usual, letters):
        trajectory = play(codec, [sampled(token_ids + codec.encode(" and more"))])
        assert trajectory.answer == "Paris"
        assert trajectory.response_ids == token_ids


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_text_behind_the_tag_inside_its_last_token_is_trained_and_not_read(vocabulary: str) -> None:
    """The last token cut or encoded again because the tag ends in its middle: ids that were never sampled (D1)."""
    codec = VOCABULARIES[vocabulary]()
    joined = next(
        ids[0] for end in (">\n\n", ">\n", ">,", ">(", ">.") if len(ids := codec.encode(end)) == 1 and len(end) > 1
    )
    token_ids = codec.encode("<search>Paris</search")
    trajectory = play(codec, [sampled((*token_ids, joined)), "<answer>Paris</answer>"])
    first = trajectory.turns[0]
    assert first.policy.token_ids == (*token_ids, joined)
    assert first.action == Search("Paris")
    assert not first.text.endswith("</search>")
    assert trajectory.stop_reason is StopReason.ANSWERED


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("protocol", ["tags", "tool_call"])
def test_a_character_cut_by_the_limit_keeps_its_ids(vocabulary: str, protocol: str) -> None:
    """Half a character that is decoded and encoded again: three tokens for the replacement mark instead of one."""
    codec = VOCABULARIES[vocabulary]()
    text = "𓀀𓂀𓃀𓄀" * 8
    token_ids = codec.encode(text)
    cut = next(n for n in range(9, 40) if codec.decode(token_ids[:n]).endswith("\ufffd"))
    limits = Limits(max_turns=1, max_turn_tokens=cut, max_observation_tokens=120, max_response_tokens=600)
    trajectory = play(codec, [text, "x"], limits, protocol)
    first = trajectory.turns[0]
    assert first.policy.token_ids == token_ids[:cut]
    assert codec.encode(first.text) != first.policy.token_ids
    assert trajectory.response_ids[:cut] == token_ids[:cut]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_passage_is_never_cut_inside_a_character(vocabulary: str) -> None:
    """A replacement mark in the policy's context: passages are shortened by tokens, characters take several."""
    codec = VOCABULARIES[vocabulary]()
    result = SearchResult("q", (hit("A", "𓀀𓂀𓃀 日本 naïve " * 30), hit("B", "短い")))
    for max_tokens in range(70, 90):
        observation = fit_observation([result, result], codec=codec, protocol=tags(codec), max_tokens=max_tokens)
        assert "\ufffd" not in observation.text
        assert observation.text.count("</information>") == 2
        assert len(codec.encode(observation.text)) <= max_tokens
