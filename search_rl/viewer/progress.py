"""How far a long job is: a bar on a terminal, plain lines otherwise; evaluations print every tenth only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from search_rl.types import Rollout

_PLAIN_STEP_PERCENT = 10


PLAIN_WIDTH = 120


def wide_console() -> Console:
    """A console on stdout that does not fold tables at 80 columns when it writes to a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


@contextmanager
def evaluation_progress(num_questions: int, console: Console) -> Iterator[Callable[[Rollout], None]]:
    """What to call with each finished rollout, whose reward is exact match."""
    tally = _Tally(num_questions)
    if not console.is_terminal:
        yield lambda rollout: _print_tenth(tally, rollout, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("evaluating", total=num_questions)

        def advance(rollout: Rollout) -> None:
            tally.add(rollout)
            bar.update(task, completed=tally.num_done, description=f"exact match {tally.exact_match:.3f}")

        yield advance


@dataclass(slots=True)
class _Tally:
    num_questions: int
    num_done: int = 0
    num_right: float = 0.0

    def add(self, rollout: Rollout) -> None:
        self.num_done += 1
        self.num_right += rollout.reward.total

    @property
    def exact_match(self) -> float:
        return self.num_right / self.num_done

    @property
    def percent(self) -> int:
        return 100 * self.num_done // self.num_questions


def _print_tenth(tally: _Tally, rollout: Rollout, console: Console) -> None:
    tenths_before = tally.percent // _PLAIN_STEP_PERCENT
    tally.add(rollout)
    if tally.percent // _PLAIN_STEP_PERCENT > tenths_before:
        console.print(
            f"evaluated {tally.num_done} of {tally.num_questions} ({tally.percent} %), "
            f"exact match {tally.exact_match:.3f}",
            highlight=False,
        )


@contextmanager
def step_progress(
    num_steps: int | None, console: Console, *, describe: Callable[[dict[str, Any]], str]
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What to call with each finished step's metrics: a bar on a terminal, a plain line a step otherwise."""
    if not console.is_terminal:
        yield lambda step: console.print(_step_line(step, num_steps, describe), highlight=False, soft_wrap=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=num_steps)
        yield lambda step: bar.update(
            task, completed=step["step"], total=step.get("num_steps", num_steps), description=describe(step)
        )


def _step_line(step: dict[str, Any], num_steps: int | None, describe: Callable[[dict[str, Any]], str]) -> str:
    return f"step {step['step']} of {step.get('num_steps', num_steps)}: {describe(step)}"
