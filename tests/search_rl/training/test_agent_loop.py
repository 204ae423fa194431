"""What the agent loop adds to an episode: the penalty for length, and the end of an interrupted generation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from search_rl.types import (
    Answer,
    Observation,
    Origin,
    Question,
    Reward,
    Search,
    SearchResult,
    Segment,
    StopReason,
    Trajectory,
    Turn,
)
from tests.search_rl.conftest import ByteCodec

pytestmark = pytest.mark.slow


def trajectory(num_policy_tokens: int, num_retrieved_tokens: int) -> Trajectory:
    searched = Turn(
        Segment(Origin.POLICY, (1,) * (num_policy_tokens - 1), (-1.0,) * (num_policy_tokens - 1)),
        "",
        Search("q"),
        Observation("o", (SearchResult("q", ()),)),
        Segment(Origin.ENVIRONMENT, (2,) * num_retrieved_tokens),
    )
    answered = Turn(Segment(Origin.POLICY, (1,), (-1.0,)), "", Answer("x"))
    prompt = Segment(Origin.PROMPT, (9,))
    return Trajectory(Question("1", "?", ("x",), "toy"), prompt, (searched, answered), StopReason.ANSWERED)


def test_overlong_counts_what_the_policy_wrote() -> None:
    """Would catch verl's count of retrieved tokens: 90 of its own are half of the buffer, 300 read ones are nothing."""
    from search_rl.training.agent_loop import shaped

    bounds = {"limit_tokens": 100, "buffer_tokens": 20}
    reward = shaped(Reward(1.0, {"exact_match": 1.0}), trajectory(90, 300), weight=2.0, **bounds)
    assert reward == Reward(0.0, {"exact_match": 1.0, "overlong": -0.5})
    assert shaped(Reward(1.0), trajectory(90, 300), weight=0.0, **bounds) == Reward(1.0)


def test_interrupted_generation_ends_with_its_stop_string(codec: ByteCodec) -> None:
    """Would catch a turn that runs on past its closing tag because new weights came in the middle of the tag."""
    from search_rl.engines.base import length_to_stop

    whole = codec.encode("<search>capital of France</search>")
    ids = (*whole, *codec.encode("\n\nParis is the capital"))
    stop = ("</search>", "</answer>")
    assert length_to_stop(ids, stop, codec.decode) == len(whole)
    assert length_to_stop(whole, stop, codec.decode) == len(whole)
    assert length_to_stop(whole[:-1], stop, codec.decode) == len(whole) - 1


@dataclass
class Server:
    """verl's client, as far as sampling goes: it answers one token and remembers what it was asked."""

    asked: list[dict[str, Any]] = field(default_factory=list)

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> SimpleNamespace:
        self.asked.append(sampling_params)
        version = {"min_global_steps": 0, "max_global_steps": 0}
        return SimpleNamespace(token_ids=[1], log_probs=[-1.0], num_preempted=0, extra_fields=version)


@pytest.mark.parametrize("seed", [None, 7])
def test_each_turn_of_each_sibling_has_its_own_seed_and_a_resumed_run_the_same(seed: int | None) -> None:
    """Would catch a resumed step that samples other episodes than the step it repeats, and siblings that are copies."""
    from search_rl.training.agent_loop import ServerEngine

    def seeds(*episodes: str) -> list[int | None]:
        server = Server()
        for episode in episodes:
            for prompt_ids in ([1, 2], [1, 2, 3]):
                engine = ServerEngine(server, {"temperature": 1.0}, str, seed=seed)
                asyncio.run(engine.generate(prompt_ids, max_tokens=4, stop=(), request_id=episode))
        return [asked.get("seed") for asked in server.asked]

    first = seeds("3/3:toy/1/0", "3/3:toy/1/1")
    assert seeds("3/3:toy/1/0", "3/3:toy/1/1") == first
    assert len(set(first)) == (4 if seed else 1)


def test_episode_that_raises_is_told_before_verl_hears_of_it(
    codec: ByteCodec, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Would catch a group that goes on with the siblings that are left after one failed, and a lost traceback."""
    from search_rl.training import agent_loop, monitor

    told: list[str] = []

    async def fail(message: str) -> None:
        told.append(message)

    async def episode(*_: Any, **__: Any) -> Trajectory:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(monitor, "fail", fail)
    monkeypatch.setattr(agent_loop.SearchAgentLoop, "_run_episode", episode)
    loop = object.__new__(agent_loop.SearchAgentLoop)
    row = {"id": "q7", "question": "?", "golden_answers": ["x"], "data_source": "toy"}
    with pytest.raises(ZeroDivisionError):
        asyncio.run(loop.run({}, **row))
    assert "Traceback" in capfd.readouterr().err
    assert told == ["an episode of question q7 failed: ZeroDivisionError: division by zero"]
