"""Evaluations without a model: an engine that knows what to say to each question."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from search_rl.agent.episode import Limits, run_episode
from search_rl.agent.protocols import protocol_named
from search_rl.engines.base import Generation
from search_rl.evaluation.runner import Evaluation, evaluate
from search_rl.search import Searcher
from search_rl.types import Question, Rollout, Trajectory
from tests.search_rl.conftest import ByteCodec, FixedSearcher

LIMITS = Limits(
    max_turns=1,
    max_turn_tokens=60,
    max_observation_tokens=120,
    max_prompt_tokens=400,
    max_response_tokens=300,
)
SEARCH = "<search>{}</search>"
ANSWER = "<answer>{}</answer>"

Run = Callable[..., Evaluation]


@dataclass(slots=True)
class ReplyingEngine:
    """Gives each question its replies, turn by turn; later questions answer sooner. `asked` keeps the ids."""

    codec: ByteCodec
    replies: Mapping[str, Sequence[str]]
    before_turn: Callable[[str], Awaitable[None]] | None = None
    asked: list[str] = field(default_factory=list)
    num_running: int = 0
    most_running: int = 0

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`."""
        turn = self.asked.count(request_id)
        self.asked.append(request_id)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        for _ in range(len(self.replies) - list(self.replies).index(request_id)):
            await asyncio.sleep(0)
        self.num_running -= 1
        if self.before_turn:
            await self.before_turn(request_id)
        token_ids = self.codec.encode(self.replies[request_id][turn])[:max_tokens]
        return Generation(token_ids, (-0.5,) * len(token_ids))


async def run_episode_of(question: Question, **parts: Any) -> Trajectory:
    """The agent's episode, named to the engine by the question."""
    return await run_episode(question, request_id=question.key, **parts)


def ask(identifier: str, answer: str, kind: str = "one_hop") -> Question:
    """A question of the data set "demo"."""
    return Question(identifier, f"what is {identifier}?", (answer,), "demo", kind)


@pytest.fixture
def run(codec: ByteCodec, searcher: FixedSearcher, tmp_path: Path) -> Run:
    """`evaluate` with everything but questions and engine filled in."""

    def run(
        questions: Sequence[Question],
        engine: ReplyingEngine,
        *,
        searcher: Searcher = searcher,
        concurrency: int = 3,
        out_path: Path = tmp_path / "episodes.jsonl",
        on_done: Callable[[Rollout], None] = lambda rollout: None,
    ) -> Evaluation:
        return asyncio.run(
            evaluate(
                questions,
                ask=partial(
                    run_episode_of,
                    engine=engine,
                    searcher=searcher,
                    codec=codec,
                    protocol=protocol_named("short"),
                    limits=LIMITS,
                ),
                concurrency=concurrency,
                out_path=out_path,
                on_done=on_done,
            )
        )

    return run
