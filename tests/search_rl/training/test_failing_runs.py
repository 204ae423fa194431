"""Runs that do not end well, with every part real: what a user sees, and what is left behind."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from search_rl.training.run_folder import read_metrics
from search_rl.types import StopReason
from tests.search_rl.training.conftest import free_port

pytestmark = pytest.mark.engine
PATIENCE_SECONDS = 120.0


def test_sigterm_at_the_start_leaves_no_process(workspace: Any) -> None:
    """Would catch Ray's own handler, which leaves at once and orphans what was just started."""
    stopped = replace(workspace, name="stopped")
    with stopped.start_training() as process:

        def has_workers() -> bool:
            children = psutil.Process(process.pid).children(recursive=True)
            return sum("ray::" in child.name() for child in children) > 2

        tree = stopped.await_in(process, has_workers, "Ray's first workers")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) != 0
    _, alive = psutil.wait_procs(tree, timeout=10)
    assert [survivor.name() for survivor in alive] == []


def flags_of(options: dict[str, Any]) -> list[str]:
    """The options of a command that set these keys."""
    return [part for name, value in options.items() for part in ("--set", f"{name}={value}")]


@dataclass(frozen=True)
class Outage:
    """A run that lost its retriever twice: for a moment, and for good. `options` started it."""

    run: Any
    port: int
    options: dict[str, Any]
    notice: str
    last_line: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return read_metrics(self.run.run_folder.root / "metrics.jsonl")

    @property
    def flags(self) -> list[str]:
        return flags_of(self.options)


@pytest.fixture(scope="module")
def outage(workspace: Any, searching_model: Path) -> Outage:
    run, port = replace(workspace, name="outage"), free_port()
    metrics = run.run_folder.root / "metrics.jsonl"
    options = {
        "model.path": searching_model,
        "retriever.url": f"http://127.0.0.1:{port}",
        "retriever.timeout_seconds": 1,
        "retriever.outage_limit_seconds": 15,
        "retriever.cache_entries": 0,
        "optimizer.learning_rate": 1e-6,
        "trainer.total_steps": 500,
        "trainer.save_every_steps": 500,
        "trainer.min_agreement_pearson": 0,
    }

    def num_steps() -> int:
        return len(read_metrics(metrics))

    with run.serving(port) as service, run.start_training(*flags_of(options)) as process:
        run.await_in(process, lambda: num_steps() >= 1, "the first step")
        service.send_signal(signal.SIGSTOP)
        notice = next(line for line in process.stderr if "training pauses" in line)
        num_before = num_steps()
        service.send_signal(signal.SIGCONT)
        run.await_in(process, lambda: num_steps() >= num_before + 2, "two steps after the pause")
        service.kill()
        last_line = process.stderr.read().strip().splitlines()[-1]
        assert process.wait() == 2
    return Outage(run, port, options, notice, last_line)


def test_run_waits_for_its_retriever_and_stops_with_the_last_step_saved_when_it_stays_away(outage: Outage) -> None:
    """Would catch an outage that voids episodes, ends the run or is trained on, and a stop that loses what was done."""
    rows, url = outage.rows, f"http://127.0.0.1:{outage.port}"
    assert url in outage.notice
    assert {row["agent/void_share"] for row in rows} == {0.0}
    assert all(row["agent/searches_per_question"] > 0.5 for row in rows)
    assert {row["waste/behind_stop_tokens"] for row in rows} == {0}
    assert outage.last_line.startswith(f"search-rl: no retriever answers: {url} (")
    assert outage.last_line.endswith(f"; step {len(rows)} is saved, go on with --resume")
    assert outage.run.run_folder.last_step == len(rows)
    lost = outage.run.rollouts(len(rows) + 1)
    assert {rollout.trajectory.stop_reason for rollout in lost if rollout.is_void} == {StopReason.SEARCH_FAILED}


def test_after_the_outage_the_same_questions_are_asked_and_sigterm_saves_the_last_finished_step(
    outage: Outage,
) -> None:
    """Would catch questions that an outage takes away for ever, and hours of training lost to a scheduler that ends a
    job before its next checkpoint is due."""
    run, saved = outage.run, len(outage.rows)
    lost = {rollout.trajectory.question.id for rollout in run.rollouts(saved + 1)}
    with run.serving(outage.port), run.start_training("--resume", *outage.flags) as process:
        tree = run.await_in(process, lambda: len(outage.rows) > saved, "the step that the outage took")
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 2
    assert {rollout.trajectory.question.id for rollout in run.rollouts(saved + 1)} == lost
    finished = run.run_folder.last_step
    assert finished == outage.rows[-1]["step"] > saved
    assert f"stopped as asked; step {finished} is saved, go on with --resume" in error.strip().splitlines()[-1]
    assert (run.run_folder.export / "config.json").exists()
    _, alive = psutil.wait_procs(tree, timeout=10)
    assert [survivor.name() for survivor in alive] == []
