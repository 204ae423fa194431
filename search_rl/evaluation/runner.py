"""Runs every question once and writes each episode down as it ends: an interrupted evaluation can go on.

Every question is counted (invariant 9): one that fails is an episode without an answer and scores 0. It is asked again
when the evaluation goes on.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from search_rl import rewards
from search_rl.errors import DataError, EngineError, RequestError, RetrieverError, SearchRLError
from search_rl.evaluation.episode_file import StoredRollouts, done_in, writing
from search_rl.profiles import SEARCH_R1, Profile
from search_rl.types import Origin, Question, Reward, Rollout, Segment, StopReason, Trajectory

Ask = Callable[[Question], Awaitable[Trajectory]]

_STOP_REASONS: tuple[tuple[type[SearchRLError], StopReason], ...] = (
    (DataError, StopReason.MAX_TOKENS),
    (RetrieverError, StopReason.SEARCH_FAILED),
    (RequestError, StopReason.ENGINE_FAILED),
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One rollout a question, in the order of the questions, and who scores them.

    Those of `evaluate` are read from disk each time they are gone through. `seconds` is the wall time of this run
    alone.
    """

    rollouts: Sequence[Rollout]
    seconds: float
    profile: Profile = SEARCH_R1


def is_failed(trajectory: Trajectory) -> bool:
    """True for a question that could not be asked properly: its search or the engine failed, or its prompt was too
    long.
    """
    return trajectory.is_void or not trajectory.turns


def reward_by(profile: Profile, trajectory: Trajectory) -> Reward:
    """Exact match under the profile; F1 and format stand beside it."""
    answer, golds = trajectory.answer, trajectory.question.golden_answers
    exact_match = profile.exact_match(answer, golds)
    parts = {"exact_match": exact_match, "f1": profile.f1(answer, golds), "format": rewards.format(trajectory)}
    return Reward(exact_match, parts)


async def evaluate(
    questions: Sequence[Question],
    *,
    ask: Ask,
    concurrency: int,
    out_path: Path,
    on_done: Callable[[Rollout], None] = lambda rollout: None,
    profile: Profile = SEARCH_R1,
    engine_seconds: Callable[[], float] = lambda: 0.0,
    max_failures_in_a_row: int | None = None,
) -> Evaluation:
    """The rollouts of all `questions`, each scored by the profile, and also a row of `out_path` by then.

    Questions that the file already holds are not asked again, except where search or engine had failed. `on_done`
    hears of each rollout, those in the file first. At most `concurrency` episodes are in flight, and no more than that
    in memory. `engine_seconds` says how long the engine has been at work, which is kept with each row.
    `max_failures_in_a_row` is twice the concurrency and 8 unless told otherwise.

    Raises EngineError when the engine fails or so many questions fail in a row, SearchRLError when the file cannot be
    written; what is written stays.
    """
    session = _Session(engine_seconds)
    failures = _FailureCount(limit=max_failures_in_a_row or 2 * concurrency + 8)
    done = done_in(out_path, questions, on_done)
    waiting = iter([question for question in questions if question.key not in done])
    with writing(out_path) as writer:

        async def work() -> None:
            for question in waiting:
                trajectory = await _episode(question, ask)
                rollout = Rollout(trajectory, reward_by(profile, trajectory), group_id=question.key)
                done[question.key] = writer.write(rollout, session.metadata)
                on_done(rollout)
                failures.count(trajectory)

        await _all_or_first_error([asyncio.create_task(work()) for _ in range(concurrency)])
    offsets = array("q", [done[question.key] for question in questions])
    return Evaluation(StoredRollouts(out_path, offsets), session.seconds, profile)


@dataclass(frozen=True, slots=True)
class _Session:
    """One run of a program over an evaluation; an evaluation that went on has several."""

    engine_seconds: Callable[[], float]
    started_at: float = field(default_factory=time.time)
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.perf_counter() - self.started

    @property
    def metadata(self) -> dict[str, Any]:
        """What stands beside a rollout in its row; `cost` reads it."""
        return {"session": self.started_at, "seconds": self.seconds, "engine_seconds": self.engine_seconds()}


@dataclass(slots=True)
class _FailureCount:
    """Ends a run in which nothing succeeds any more: it would only wait its retries out, question by question."""

    limit: int
    num_failed: int = 0

    def count(self, trajectory: Trajectory) -> None:
        """Raise EngineError at the limit."""
        self.num_failed = self.num_failed + 1 if trajectory.is_void else 0
        if self.num_failed >= self.limit:
            reason = trajectory.failure or trajectory.stop_reason
            raise EngineError(f"{self.num_failed} questions in a row failed, the last by: {reason}; mend it and resume")


async def _episode(question: Question, ask: Ask) -> Trajectory:
    """The episode, one without turns where it could not be had."""
    try:
        return await ask(question)
    except (DataError, RetrieverError, RequestError) as error:
        stop_reason = next(reason for kind, reason in _STOP_REASONS if isinstance(error, kind))
        return Trajectory(question, Segment(Origin.PROMPT, ()), turns=(), stop_reason=stop_reason, failure=str(error))


async def _all_or_first_error(workers: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all; when one fails, stop the others and raise its error."""
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
