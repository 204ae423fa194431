"""Signs of life of a run: every process beats, the driver watches.

A beat names the stage and how long the next one may take, so a dead engine and a silent hang both become an error.
The monitor is a named Ray actor, reachable from every node; in a process without Ray a beat does nothing.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import ray

ACTOR_NAME = "search_rl_monitor"
DEFAULT_PATIENCE_SECONDS = 120.0
NOTICE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the driver sees: the last stage, its age, how long it may last, a fatal message, and what is new since it
    last looked: metrics of steps, and notices for the user."""

    stage: str
    age_seconds: float
    patience_seconds: float
    failure: str | None
    steps: tuple[dict[str, Any], ...]
    notices: tuple[str, ...] = ()

    @property
    def is_silent(self) -> bool:
        """True when the next beat is overdue."""
        return self.age_seconds > self.patience_seconds


class Monitor:
    """The state behind the actor."""

    def __init__(self, start_seconds: float) -> None:
        self._stage, self._at, self._patience = "start", time.monotonic(), start_seconds
        self._failure: str | None = None
        self._steps: list[dict[str, Any]] = []
        self._notices: list[str] = []
        self._noticed_at = -math.inf
        self._is_stop_asked = False

    def beat(self, stage: str, patience_seconds: float) -> None:
        """Note a sign of life."""
        self._stage, self._at, self._patience = stage, time.monotonic(), patience_seconds

    def pause(self, reason: str, patience_seconds: float) -> None:
        """Note a sign of life of a process that waits on purpose; the user hears of it once in a while."""
        self.beat(f"pause, {reason}", patience_seconds)
        if self._at - self._noticed_at >= NOTICE_SECONDS:
            self._noticed_at = self._at
            self._notices.append(f"training pauses: {reason}")

    def fail(self, message: str) -> None:
        """Ask the driver to stop the run; the first message wins."""
        self._failure = self._failure or message

    def ask_to_stop(self) -> None:
        """Let the trainer know that the run should be saved and ended."""
        self._is_stop_asked = True

    def is_stop_asked(self) -> bool:
        """True once somebody asked."""
        return self._is_stop_asked

    def report(self, metrics: dict[str, Any]) -> None:
        """Hand a finished step's metrics to the driver."""
        self._steps.append(metrics)

    def read(self) -> Pulse:
        """The state since the last read."""
        steps, self._steps = tuple(self._steps), []
        notices, self._notices = tuple(self._notices), []
        age_seconds = time.monotonic() - self._at
        return Pulse(self._stage, age_seconds, self._patience, self._failure, steps, notices)


def start(start_seconds: float) -> Any:
    """The actor's handle; the first beat may take `start_seconds`."""
    actor = ray.remote(num_cpus=0, max_concurrency=1)(Monitor)
    return actor.options(name=ACTOR_NAME).remote(start_seconds)


def beat(stage: str, patience_seconds: float = DEFAULT_PATIENCE_SECONDS) -> None:
    """Tell the monitor of this run, if there is one, that this process is alive."""
    _send("beat", stage, patience_seconds)


def pause(reason: str, patience_seconds: float = DEFAULT_PATIENCE_SECONDS) -> None:
    """Tell the monitor that this process waits on purpose, and why; to be repeated within `patience_seconds`."""
    _send("pause", reason, patience_seconds)


async def fail(message: str) -> None:
    """Ask the driver to stop the run with `message`; the monitor has it when this returns."""
    reply = _send("fail", message)
    if reply is not None:
        await reply


def report(metrics: dict[str, Any]) -> None:
    """Hand a finished step's metrics to the driver."""
    _send("report", metrics)


def is_stop_asked() -> bool:
    """True when this run should be saved and ended."""
    asked = _send("is_stop_asked")
    return asked is not None and bool(ray.get(asked))


_handle: Any = None


def _send(method: str, *arguments: Any) -> Any:
    """The reply to come, None in a process without a run."""
    global _handle
    if not ray.is_initialized():
        return None
    if _handle is None:
        try:
            _handle = ray.get_actor(ACTOR_NAME)
        except ValueError:
            return None
    return getattr(_handle, method).remote(*arguments)
