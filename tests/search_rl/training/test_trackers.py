"""Where metrics go: names that are refused, packages that are missing, W&B without a key, and real event files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from search_rl.config import load_config
from search_rl.errors import ConfigError
from search_rl.training.launch import environment
from search_rl.training.trackers import check_trackers, tracker_environment
from tests.search_rl.training.test_metrics import hand_counted_metrics

DEMO = Path("configs/demo.yaml")
NAMES = ("console", "tensorboard", "wandb", "mlflow", "trackio")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tracker settings of whoever runs the tests stay out."""
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE", "MLFLOW_TRACKING_URI", "TRACKIO_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_trackers_are_taken_by_name() -> None:
    """Would catch a tracker that verl knows and the config refuses, and a mistyped one found after minutes."""
    config = load_config(DEMO, [f"trainer.trackers=[{','.join(NAMES)}]"])
    assert config.trainer.trackers == NAMES
    with pytest.raises(ConfigError, match=r"trainer.trackers.0: Input should be 'console', .* \(got 'wandbb'\)"):
        load_config(DEMO, ["trainer.trackers=[wandbb]"])


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_missing_package_is_one_line_before_the_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch an ImportError out of a worker process, minutes after the start."""
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as caught:
        check_trackers(("console", name))
    assert str(caught.value) == (
        f"trainer.trackers: {name} needs the package {name}: pip install {name}, or leave the tracker out"
    )
    check_trackers(("console",))


def test_a_folder_that_a_tracker_left_is_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Would catch `wandb/` or `mlflow/` in the working folder taken for the package: Python imports empty folders."""
    (tmp_path / "mlflow").mkdir()
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match="mlflow needs the package mlflow"):
        check_trackers(("mlflow",))


def test_wandb_is_offline_unless_there_is_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Would catch a run that waits for a key at a prompt that nobody sees, and one kept offline although it has one."""

    def mode() -> str:
        return tracker_environment(("wandb",), run_folder=tmp_path / "run")["WANDB_MODE"]

    assert mode() == "offline"
    (tmp_path / "netrc").write_text("machine example.org login a password b\n")
    assert mode() == "offline"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert mode() == "online"
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert mode() == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert mode() == "disabled"


def test_trackers_write_below_the_root_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch files strewn over the working folder, and a user's own MLflow server that is overruled."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    config = load_config(DEMO, ["trainer.trackers=[tensorboard,mlflow,trackio]", "run.root=/r", "run.name=n"])
    variables = environment(config)
    assert variables["TENSORBOARD_DIR"] == "/r/n/tensorboard"
    assert variables["TRACKIO_DIR"] == "/r/trackio"
    assert variables["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
    assert "WANDB_MODE" not in variables


@pytest.mark.slow
def test_our_metrics_reach_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a metric that is no number to TensorBoard, one that is lost, and event files in another place."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from verl.utils.tracking import Tracking

    variables = tracker_environment(("tensorboard",), run_folder=tmp_path / "run")
    monkeypatch.setenv("TENSORBOARD_DIR", variables["TENSORBOARD_DIR"])
    tracking = Tracking("search-rl", "run", ["tensorboard"])
    metrics = hand_counted_metrics()
    for step in (1, 2):
        tracking.log({name: value * step for name, value in metrics.items()}, step)
    tracking.finish()
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(metrics)
    for name, value in metrics.items():
        points = [(event.step, event.value) for event in events.Scalars(name)]
        assert points == [(1, pytest.approx(value, rel=1e-6)), (2, pytest.approx(2 * value, rel=1e-6))]
