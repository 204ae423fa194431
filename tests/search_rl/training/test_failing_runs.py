"""Runs that do not end well, with every part real: what a user sees, and what is left behind."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import psutil
import pytest

from search_rl.training.run_folder import read_metrics

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


def test_dead_engine_is_an_error_within_two_minutes_and_the_checkpoint_stays(workspace: Any) -> None:
    """Would catch a run that waits for ever on a rollout engine that is gone."""
    dead = replace(workspace, name="dead")
    metrics = dead.run_folder.root / "metrics.jsonl"
    with dead.start_training("--set", "trainer.total_steps=50") as process:
        tree = dead.await_in(process, lambda: metrics.exists() and bool(read_metrics(metrics)), "the first step")
        engines = [child for child in tree if "EngineCore" in child.name() or "EngineCore" in " ".join(child.cmdline())]
        assert engines, [child.name() for child in tree]
        for engine in engines:
            engine.kill()
        _, error = process.communicate(timeout=PATIENCE_SECONDS + 60)
    assert process.returncode == 2
    assert "Engine" in error.strip().splitlines()[-1], error
    assert dead.run_folder.last_step is not None
    _, alive = psutil.wait_procs(tree, timeout=10)
    assert [survivor.name() for survivor in alive] == []
