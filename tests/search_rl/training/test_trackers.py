"""Where metrics go: names that are refused, packages that are missing, W&B without a key, and real event files."""

from __future__ import annotations

import json
import sqlite3
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

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


def tensorboard_points(run_folder: Path) -> dict[str, list[tuple[int, Any]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_folder / "tensorboard"))
    events.Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def wandb_points(run_folder: Path) -> dict[str, list[tuple[int, Any]]]:
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = run_folder.glob("wandb/offline-run-*/run-*.wandb")
    points = defaultdict(list)
    for data in wandb_records(path.read_bytes()):
        history = Record.FromString(data).history.item
        items = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in history}
        for name, value in items.items():
            points[name].append((items["_step"], value))
    return points


def wandb_records(file: bytes) -> Iterator[bytes]:
    """The records of W&B's file: LevelDB's log format behind a header of seven bytes."""
    start, record = 7, b""
    while start + 7 <= len(file):
        _, size, kind = struct.unpack_from("<IHB", file, start)
        record += file[start + 7 : start + 7 + size]
        if kind in (1, 4):  # The whole record, or its last part.
            yield record
            record = b""
        start += 7 + size
        if 32768 - start % 32768 < 7:
            start += 32768 - start % 32768


def mlflow_points(run_folder: Path) -> dict[str, list[tuple[int, Any]]]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{run_folder.parent / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("search-rl").experiment_id])
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: [(point.step, point.value) for point in history] for name, history in histories.items()}


def trackio_points(run_folder: Path) -> dict[str, list[tuple[int, Any]]]:
    points = defaultdict(list)
    with closing(sqlite3.connect(run_folder.parent / "trackio" / "search-rl.db")) as database:
        for step, metrics in database.execute("select step, metrics from metrics order by step"):
            for name, value in json.loads(metrics).items():
                points[name].append((step, value))
    return points


POINTS = {
    "tensorboard": tensorboard_points,
    "wandb": wandb_points,
    "mlflow": mlflow_points,
    "trackio": trackio_points,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POINTS)
def test_our_metrics_reach_the_tracker(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a metric that is no number to a tracker, one that is lost, and files in another place. MLflow
    and trackio are not in the lock: where they are installed this is their test too."""
    for variable, setting in tracker_environment((name,), run_folder=tmp_path / "run").items():
        monkeypatch.setenv(variable, setting)
    pytest.importorskip(name)
    from verl.utils.tracking import Tracking

    (tmp_path / "run").mkdir()
    tracking = Tracking("search-rl", "run", [name], config={"trainer": {}})
    metrics = hand_counted_metrics()
    for step in (1, 2):
        tracking.log({name: value * step for name, value in metrics.items()}, step)
    tracking.finish()
    points = POINTS[name](tmp_path / "run")
    for metric, value in metrics.items():
        assert points[metric] == [(1, pytest.approx(value, rel=1e-6)), (2, pytest.approx(2 * value, rel=1e-6))]
