"""The watch over a run: silence, a failure that a worker reports, and what a log says about the cause."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from search_rl.config import load_config
from search_rl.errors import TrainingError
from search_rl.training.launch import environment, first_error, watch
from search_rl.training.monitor import Monitor
from search_rl.training.run_folder import RunFolder


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.mark.slow
def test_silent_hang_becomes_an_error(ray: Any, tmp_path: Path) -> None:
    """Would catch a run that waits for ever for a dead engine: the task hangs, and no beat follows the last one."""
    monitor = ray.remote(num_cpus=0)(Monitor).remote(60.0)
    ray.get(monitor.beat.remote("rollout", 3.0))
    hanging = ray.remote(lambda: time.sleep(600)).remote()
    started = time.monotonic()
    with pytest.raises(TrainingError, match=r"no sign of life for \d+ s in stage 'rollout' \(allowed: 3 s\)"):
        watch(hanging, monitor, RunFolder(tmp_path), on_step=lambda step: None)
    assert time.monotonic() - started < 30
    ray.cancel(hanging, force=True)


@pytest.mark.slow
def test_failure_of_a_worker_stops_the_run_and_finished_steps_are_reported(ray: Any, tmp_path: Path) -> None:
    """Would catch a group that fails while the rest of the run trains on, and a step that is never shown."""
    monitor = ray.remote(num_cpus=0)(Monitor).remote(60.0)
    ray.get([monitor.report.remote({"step": 1}), monitor.fail.remote("the engine died")])
    hanging = ray.remote(lambda: time.sleep(600)).remote()
    seen: list[dict[str, Any]] = []
    with pytest.raises(TrainingError, match="the engine died"):
        watch(hanging, monitor, RunFolder(tmp_path), on_step=seen.append)
    assert seen == [{"step": 1}]
    ray.cancel(hanging, force=True)


@pytest.mark.slow
def test_task_that_raises_is_told_by_its_own_message(ray: Any, tmp_path: Path) -> None:
    """Would catch a Ray traceback in place of the one line that a check wrote."""

    def task() -> None:
        raise TrainingError("40% of the episodes are void")

    monitor = ray.remote(num_cpus=0)(Monitor).remote(60.0)
    with pytest.raises(TrainingError, match=r"^40% of the episodes are void$"):
        watch(ray.remote(task).remote(), monitor, RunFolder(tmp_path), on_step=lambda step: None)
    assert "Traceback" in (tmp_path / "error.log").read_text() or "task" in (tmp_path / "error.log").read_text()


@pytest.mark.slow
def test_failure_of_a_worker_is_told_though_verl_fails_of_it_at_once(ray: Any, tmp_path: Path) -> None:
    """A dead engine read "terminal groups with no materializable trajectories" when verl ended before a look at it."""

    def task() -> None:
        raise RuntimeError("selected terminal groups with no materializable trajectories")

    monitor = ray.remote(num_cpus=0)(Monitor).remote(60.0)
    ray.get(monitor.fail.remote("the engine died"))
    failed = ray.remote(task).remote()
    ray.wait([failed])
    with pytest.raises(TrainingError, match=r"^the engine died"):
        watch(failed, monitor, RunFolder(tmp_path), on_step=lambda step: None)


@pytest.mark.slow
def test_run_that_ends_well_forgets_what_failed_behind_its_last_step(ray: Any, tmp_path: Path) -> None:
    """Would catch a finished run that is called failed: an asynchronous one ends amid episodes that nobody needs."""
    monitor = ray.remote(num_cpus=0)(Monitor).remote(60.0)
    ray.get(monitor.fail.remote("the engine is gone"))
    finished = ray.remote(lambda: None).remote()
    ray.wait([finished])
    watch(finished, monitor, RunFolder(tmp_path), on_step=lambda step: None)


def test_first_error_is_the_cause_and_not_its_echo() -> None:
    """Would catch "EngineCore encountered an issue" where the worker had said why."""
    log = """
    UserWarning: megatron engine is not available: ModuleNotFoundError("No module named 'megatron'")
    (Worker) RuntimeError: Unsupported CPU attention configuration: head_dim=16
    EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
    """
    assert first_error(log) == "RuntimeError: Unsupported CPU attention configuration: head_dim=16"
    assert first_error("all is well") == ""
    log = "ValueError: what the worker told\nRuntimeError: out of memory"
    assert first_error(log, known="an episode failed: what the worker told") == "RuntimeError: out of memory"


def test_separate_pools_get_past_a_notice_that_verl_writes_wrongly() -> None:
    """verl 0.9.1 gives `flush=True` to a logger at level INFO where rollout has devices of its own: a TypeError."""
    config = load_config(
        Path("configs/qwen2.5-3b-grpo-8gpu.yaml"),
        ["trainer.mode=separate_async", "hardware.rollout_nodes=1", "hardware.rollout_gpus_per_node=4"],
    )
    assert environment(config)["VERL_LOGGING_LEVEL"] == "WARN"
    assert "VERL_LOGGING_LEVEL" not in environment(load_config(Path("configs/demo.yaml")))


def test_monitor_keeps_the_first_failure_and_hands_steps_over_once() -> None:
    """Would catch the cause overwritten by its consequences, and a step shown twice."""
    monitor = Monitor(5.0)
    monitor.fail("cause")
    monitor.fail("consequence")
    monitor.report({"step": 1})
    pulse = monitor.read()
    assert (pulse.failure, pulse.steps, pulse.is_silent) == ("cause", ({"step": 1},), False)
    assert monitor.read().steps == ()


def test_pause_is_a_sign_of_life_and_told_once_in_a_while() -> None:
    """Would catch a watchdog that ends a run which waits on purpose, and a user who sees a bar that stands still."""
    monitor = Monitor(60.0)
    monitor.beat("rollout", 0.0)
    for _ in range(3):
        monitor.pause("no retriever answers: http://a", 300.0)
    pulse = monitor.read()
    assert pulse.notices == ("training pauses: no retriever answers: http://a",)
    assert (pulse.stage, pulse.is_silent) == ("pause, no retriever answers: http://a", False)
    assert monitor.read().notices == ()
