"""The laws of ids, masks and log-probs over ten thousand episodes with real tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from search_rl.agent.episode import Limits
from search_rl.agent.protocols import AgentProtocol
from search_rl.agent.selection import protocol_for
from search_rl.codec import TransformersCodec, load_codec
from search_rl.config import AgentSection
from search_rl.rewards import score_or_void
from search_rl.training.step_episodes import step_episodes
from search_rl.types import Rollout
from tests.search_rl.agent.test_protocol_episodes import DRAWN, LIMITS_DRAWN, PAIRS, SEARCHERS, check_laws
from tests.search_rl.conftest import FixedSearcher

SMOLLM2 = {"smollm2": "tags", "smollm2, tool calls": "tool_call"}
NAMES = (*PAIRS, *SMOLLM2)
EPISODES = 10_000 // len(NAMES) + 1


@pytest.fixture(scope="session")
def smollm2(model_path: Path) -> TransformersCodec:
    """The tokenizer of the model that the demo trains, as transformers loads it."""
    return load_codec(model_path)


def smollm2_protocol(codec: TransformersCodec, name: str) -> AgentProtocol:
    """The demo's wording over the demo's tokenizer."""
    return protocol_for(codec, **{**AgentSection().conversation, "prompt": "short", "protocol": name})


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=EPISODES, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=DRAWN, searcher=SEARCHERS, limits=LIMITS_DRAWN)
def test_the_laws_hold_over_ten_thousand_episodes(
    name: str, smollm2: TransformersCodec, drawn: list[str | list[int]], searcher: FixedSearcher, limits: Limits
) -> None:
    """Would catch what 250 episodes miss; ids, a mask or log-probs that change on the way to verl and the records."""
    from search_rl.training.agent_loop import agent_loop_output

    codec, protocol = PAIRS[name]() if name in PAIRS else (smollm2, smollm2_protocol(smollm2, SMOLLM2[name]))
    trajectory = check_laws(codec, protocol, drawn, searcher=searcher, limits=limits)
    rollout = Rollout(trajectory, score_or_void(trajectory), "g")
    output = agent_loop_output(rollout, {}, retriever={"lost": "", "counts": {}})
    assert tuple(output.prompt_ids) == trajectory.prompt.token_ids
    assert tuple(output.response_ids) == trajectory.response_ids
    assert output.response_mask == [int(ours and not rollout.is_void) for ours in trajectory.response_mask]
    assert tuple(output.response_logprobs) == trajectory.response_logprobs
    assert step_episodes([output.extra_fields]).rollouts == (rollout,)
