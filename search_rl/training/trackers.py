"""Where a run's metrics go beside its metrics.jsonl: verl's trackers, checked before anything starts."""

from __future__ import annotations

import netrc
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from search_rl.errors import ConfigError


def check_trackers(trackers: Sequence[str]) -> None:
    """Raises ConfigError for a tracker whose package, which has the tracker's name, is not installed."""
    for name in trackers:
        if name != "console" and not _is_installed(name):
            raise ConfigError(
                f"trainer.trackers: {name} needs the package {name}: pip install {name}, or leave the tracker out"
            )


def tracker_environment(trackers: Sequence[str], *, run_folder: Path) -> dict[str, str]:
    """Variables that tell the trackers where to write: files below the run folder or beside it, and W&B offline unless
    there is a key.

    MLflow and trackio compare runs, so all runs of one root share a store. What the user has set wins.
    """
    root = run_folder.parent
    variables: dict[str, dict[str, str]] = {
        "tensorboard": {"TENSORBOARD_DIR": str(run_folder / "tensorboard")},
        "wandb": {"WANDB_DIR": str(run_folder), "WANDB_MODE": "online" if _has_wandb_key() else "offline"},
        "mlflow": {"MLFLOW_TRACKING_URI": f"sqlite:///{root / 'mlflow.db'}"},
        "trackio": {"TRACKIO_DIR": str(root / "trackio")},
    }
    chosen = {name: value for tracker in trackers for name, value in variables.get(tracker, {}).items()}
    own = {"TENSORBOARD_DIR", "WANDB_DIR"}
    return {name: value if name in own else os.environ.get(name, value) for name, value in chosen.items()}


def _is_installed(package: str) -> bool:
    """True for a package with code; a folder of that name, as trackers leave behind, is none."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def _has_wandb_key() -> bool:
    """True when W&B would find a key: in the environment, or where `wandb login` keeps it."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (FileNotFoundError, netrc.NetrcParseError):
        return False
