"""The run folder: what a run leaves behind, and where. Everything is written whole or not at all.

config.json versions.json verl_overrides.txt   what was run
agent.json                                     how the agent talked, and its budgets by name
metrics.jsonl                                  one row a step
rollouts/step_000001.jsonl                     every episode of a step
checkpoints/global_step_N/                     verl's checkpoints; export/ is the last one for transformers
best/ best.json                                the export that answered the dev questions best, and how well
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
from search_rl.training.checkpoints import LATEST, fault, link_tree, point, seal, write_whole
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
    def best(self) -> Path:
        """The Hugging Face model folder that answered the dev questions best; it outlives its checkpoint."""
        return self.root / "best"

    @property
    def steps(self) -> list[int]:
        """The steps with a checkpoint, whole or not, in order."""
        numbers = (path.name.removeprefix("global_step_") for path in self.checkpoints.glob("global_step_*"))
        return sorted(int(number) for number in numbers if number.isdecimal())

    @property
    def last_step(self) -> int | None:
        """The step of the last whole checkpoint, None where there is none."""
        return next((step for step in reversed(self.steps) if not self.fault(step)), None)

    def fault(self, step: int) -> str:
        """What keeps the checkpoint of a step from being used, empty for a whole one."""
        return fault(self.checkpoint(step))

    def checkpoint(self, step: int) -> Path:
        """The folder of one checkpoint."""
        return self.checkpoints / f"global_step_{step}"

    def model(self, step: int) -> Path:
        """The Hugging Face folder in one checkpoint."""
        return self.checkpoint(step) / "actor" / "huggingface"

    def metrics_log(self, first_step: int) -> MetricsLog:
        """The tracker of metrics.jsonl; rows of steps that will be done again are dropped."""
        path = self.root / "metrics.jsonl"
        self._write_metrics([row for row in read_metrics(path) if row["step"] < first_step])
        return MetricsLog(path)

    def add_metrics(self, step: int, figures: Mapping[str, float]) -> None:
        """More figures for a step that has its row already."""
        rows = read_metrics(self.root / "metrics.jsonl")
        if any(row["step"] == step for row in rows):
            self._write_metrics([{**row, **figures} if row["step"] == step else row for row in rows])

    def _write_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        write_whole(self.root / "metrics.jsonl", "".join(orjson.dumps(row).decode() + "\n" for row in rows))

    def write_rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Store all episodes of a step."""
        path = self.root / "rollouts" / f"step_{step:06d}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        records.append(path, rollouts, {"step": step})

    def write_json(self, name: str, value: Any) -> None:
        """Store a small document."""
        self.root.mkdir(parents=True, exist_ok=True)
        write_whole(self.root / name, json.dumps(value, indent=2, sort_keys=True, default=str) + "\n")

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

    def note_checkpoint(self, step: int, *, keep: int) -> None:
        """The checkpoint of `step` is finished: it is the one to go on from, and `export` its model. Of all checkpoints
        the last `keep` stay."""
        seal(self.checkpoint(step))
        point(self.export, self.model(step))
        for old in self.steps[:-keep]:
            shutil.rmtree(self.checkpoint(old))

    def rewind(self, step: int) -> None:
        """Make the checkpoint of `step` the one to go on from; those of later steps are removed."""
        for later in self.steps:
            if later > step:
                shutil.rmtree(self.checkpoint(later))
        write_whole(self.checkpoints / LATEST, str(step))
        point(self.export, self.model(step))

    def keep_best(self, step: int) -> None:
        """Make `best` the export of the checkpoint of `step`, by hard links: it costs no room while that one stays."""
        if not (self.model(step) / "config.json").exists():
            raise TrainingError(f"no export of step {step} at {self.model(step)} to keep: do all nodes see that disk?")
        new, old = self.checkpoints / "best_a", self.checkpoints / "best_b"
        if self.best.resolve() == new.resolve():
            new, old = old, new
        link_tree(self.model(step), new)
        point(self.best, new)
        shutil.rmtree(old, ignore_errors=True)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file, none when there is no file; a last row cut by a kill is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [orjson.loads(line) for line in lines[:-1]]
