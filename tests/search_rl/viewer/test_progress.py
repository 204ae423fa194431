"""Progress off a terminal: a log that stays short."""

from __future__ import annotations

import io

from rich.console import Console

from search_rl.types import Origin, Question, Reward, Rollout, Segment, StopReason, Trajectory
from search_rl.viewer.progress import evaluation_progress


def test_a_line_every_tenth() -> None:
    """A line for each of thousands of questions, or none until the end."""
    question = Question("1", "a?", ("x",), "demo")
    trajectory = Trajectory(question, Segment(Origin.PROMPT, (1,)), (), StopReason.MAX_TOKENS)
    console = Console(file=io.StringIO(), width=100, record=True)
    with evaluation_progress(25, console) as on_done:
        for _ in range(25):
            on_done(Rollout(trajectory, Reward(0.0), "g"))
    lines = console.export_text().splitlines()
    assert len(lines) == 10
    assert lines[0] == "evaluated 3 of 25 (12 %), exact match 0.000"
    assert lines[-1] == "evaluated 25 of 25 (100 %), exact match 0.000"
