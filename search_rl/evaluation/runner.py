"""Runs every question once and writes each episode down as it ends: an interrupted evaluation can go on.

Every question is counted (invariant 9): one that fails is an episode without an answer and scores 0.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_rl import records, rewards
from search_rl.agent.episode import Limits, run_episode
from search_rl.agent.protocols import AgentProtocol
from search_rl.codec import Codec
from search_rl.engines.base import Engine
from search_rl.errors import DataError, SearchRLError
from search_rl.profiles import SEARCH_R1, Profile
from search_rl.search import Searcher
from search_rl.types import Origin, Question, Reward, Rollout, Segment, StopReason, Trajectory


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One rollout a question, in the order of the questions, and who scores them.

    `seconds` is the wall time of this run alone.
    """

    rollouts: tuple[Rollout, ...]
    seconds: float
    profile: Profile = SEARCH_R1


def is_failed(trajectory: Trajectory) -> bool:
    """True for a question that could not be asked properly: its search failed or its prompt was too long."""
    return trajectory.is_void or not trajectory.turns


def reward_by(profile: Profile, trajectory: Trajectory) -> Reward:
    """Exact match under the profile; F1 and format stand beside it."""
    scores = profile.scores(trajectory.answer, trajectory.question.golden_answers)
    parts = {"exact_match": scores.exact_match, "f1": scores.f1, "format": rewards.format(trajectory)}
    return Reward(scores.exact_match, parts)


async def evaluate(
    questions: Sequence[Question],
    *,
    engine: Engine,
    searcher: Searcher,
    codec: Codec,
    protocol: AgentProtocol,
    limits: Limits,
    concurrency: int,
    out_path: Path,
    on_done: Callable[[Rollout], None] = lambda rollout: None,
    profile: Profile = SEARCH_R1,
) -> Evaluation:
    """The rollouts of all `questions`, each scored by the profile, and also a row of `out_path` by then.

    Questions that the file already holds are not asked again, except where the search had failed. `on_done`
    hears of each rollout, those in the file first. At most `concurrency` episodes are in flight. Raises
    EngineError when the engine fails, SearchRLError when the file cannot be written; what is written stays.
    """
    started = time.perf_counter()
    done = _recorded(out_path, questions)
    for rollout in done.values():
        on_done(rollout)
    waiting = iter([question for question in questions if question.key not in done])

    async def work() -> None:
        for question in waiting:
            rollout, metadata = await _rollout(
                question, profile, engine=engine, searcher=searcher, codec=codec, protocol=protocol, limits=limits
            )
            _write(out_path, rollout, metadata)
            done[question.key] = rollout
            on_done(rollout)

    await _all_or_first_error([asyncio.create_task(work()) for _ in range(concurrency)])
    return Evaluation(tuple(done[question.key] for question in questions), time.perf_counter() - started, profile)


def read_rollouts(path: Path) -> dict[str, Rollout]:
    """The rollouts of an episodes file by question key; of a question asked again, the last one."""
    rollouts = (record.rollout for record in records.read(path))
    return {rollout.trajectory.question.key: rollout for rollout in rollouts}


async def _rollout(
    question: Question, profile: Profile, *, limits: Limits, **parts: Any
) -> tuple[Rollout, dict[str, str]]:
    """The scored episode, and why it failed where the episode itself cannot say."""
    try:
        trajectory = await run_episode(question, limits=limits, request_id=question.key, **parts)
    except DataError as error:
        prompt = Segment(Origin.PROMPT, ())
        trajectory = Trajectory(question, prompt, turns=(), stop_reason=StopReason.MAX_TOKENS)
        return Rollout(trajectory, reward_by(profile, trajectory), group_id=question.key), {"error": str(error)}
    return Rollout(trajectory, reward_by(profile, trajectory), group_id=question.key), {}


def _write(path: Path, rollout: Rollout, metadata: dict[str, str]) -> None:
    try:
        records.append(path, [rollout], metadata)
    except OSError as error:
        raise SearchRLError(f"cannot write {path}: {error.strerror}; make room and resume") from error


def _recorded(path: Path, questions: Sequence[Question]) -> dict[str, Rollout]:
    """The rollouts on file that answer one of the `questions` as it stands, void ones left out."""
    rollouts = read_rollouts(path) if path.exists() else {}
    asked = {question.key: question for question in questions}
    return {
        key: rollout
        for key, rollout in rollouts.items()
        if asked.get(key) == rollout.trajectory.question and not rollout.trajectory.is_void
    }


async def _all_or_first_error(workers: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all; when one fails, stop the others and raise its error."""
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
