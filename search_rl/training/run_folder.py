"""The run folder: what a run leaves behind, and where. Everything is written whole or not at all.

config.json versions.json verl_overrides.txt   what was run
agent.json                                     how the agent talked, and its budgets by name
metrics.jsonl                                  one row a step
rollouts/step_000001.jsonl                     every episode of a step
checkpoints/global_step_N/                     verl's checkpoints; export/ is the last one for transformers
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from search_rl import records
from search_rl.errors import TrainingError
from search_rl.types import Rollout

CHECKPOINT_MARGIN_BYTES = 512 * 1024**2


class MetricsLog:
    """A verl tracker that appends a row a step to metrics.jsonl."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Append one row."""
        row = orjson.dumps({"step": step, **data}, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
        with self._path.open("ab") as file:
            file.write(row + b"\n")

    def finish(self) -> None:
        """Nothing is held open."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths below one run's root."""

    root: Path

    @property
    def checkpoints(self) -> Path:
        """verl's `default_local_dir`."""
        return self.root / "checkpoints"

    @property
    def export(self) -> Path:
        """The last checkpoint as a Hugging Face model folder."""
        return self.root / "export"

    @property
    def last_step(self) -> int | None:
        """The step of the last whole checkpoint, None before the first."""
        tracker = self.checkpoints / "latest_checkpointed_iteration.txt"
        return int(tracker.read_text()) if tracker.exists() else None

    def checkpoint(self, step: int) -> Path:
        """The folder of one checkpoint."""
        return self.checkpoints / f"global_step_{step}"

    def model(self, step: int) -> Path:
        """The Hugging Face folder in one checkpoint."""
        return self.checkpoint(step) / "actor" / "huggingface"

    def metrics_log(self, first_step: int) -> MetricsLog:
        """The tracker of metrics.jsonl; rows of steps that will be done again are dropped."""
        path = self.root / "metrics.jsonl"
        kept = [row for row in read_metrics(path) if row["step"] < first_step]
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in kept))
        return MetricsLog(path)

    def write_rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Store all episodes of a step."""
        path = self.root / "rollouts" / f"step_{step:06d}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        records.append(path, rollouts, {"step": step})

    def write_json(self, name: str, value: Any) -> None:
        """Store a small document."""
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(json.dumps(value, indent=2, sort_keys=True, default=str) + "\n")

    def check_disk_space(self) -> None:
        """Raises TrainingError when a checkpoint as large as the last one would not fit."""
        last = self.last_step
        files = self.checkpoint(last).rglob("*") if last is not None else ()
        needed = sum(file.stat().st_size for file in files if file.is_file()) + CHECKPOINT_MARGIN_BYTES
        free = shutil.disk_usage(self.root).free
        if free < needed:
            raise TrainingError(
                f"no room for a checkpoint in {self.root}: {free / 1024**3:.1f} GiB free, {needed / 1024**3:.1f} GiB "
                f"needed. Free some space and start again with --resume; the last checkpoint is "
                f"{'none' if last is None else f'step {last}'}"
            )

    def note_checkpoint(self, step: int) -> None:
        """Make `export` the model of checkpoint `step`; a symbolic link is swapped in one move."""
        link = self.root / "export.new"
        link.unlink(missing_ok=True)
        link.symlink_to(self.model(step).relative_to(self.root))
        link.replace(self.export)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file, none when there is no file; a last row cut by a kill is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [orjson.loads(line) for line in lines[:-1]]
