"""What a run leaves behind, and what it does not lose."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_rl.errors import TrainingError
from search_rl.training.run_folder import RunFolder, read_metrics

LARGER_THAN_ANY_DISK_BYTES = 8 * 1024**4


def checkpoint(folder: RunFolder, step: int, num_bytes: int) -> None:
    path = folder.checkpoint(step) / "actor" / "huggingface" / "model.safetensors"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(num_bytes)
    (folder.checkpoints / "latest_checkpointed_iteration.txt").write_text(str(step))


def test_resumed_run_drops_the_rows_that_it_will_write_again(tmp_path: Path) -> None:
    """Would catch a step twice in metrics.jsonl, and a file emptied by a resume as verl's own tracker does."""
    folder = RunFolder(tmp_path)
    log = folder.metrics_log(1)
    for step in (1, 2, 3):
        log.log({"reward": step / 10}, step)
    folder.metrics_log(3).log({"reward": 0.9}, 3)
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 1, "reward": 0.1},
        {"step": 2, "reward": 0.2},
        {"step": 3, "reward": 0.9},
    ]


def test_row_that_a_kill_cut_short_is_no_row(tmp_path: Path) -> None:
    """Would catch a resume that fails on half a line."""
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2, "rew')
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]


def test_disk_without_room_is_told_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    """Would catch a checkpoint that fills the disk and takes the last good one with it."""
    folder = RunFolder(tmp_path)
    folder.check_disk_space()
    checkpoint(folder, 7, LARGER_THAN_ANY_DISK_BYTES)
    with pytest.raises(TrainingError, match=r"no room for a checkpoint .* the last checkpoint is step 7"):
        folder.check_disk_space()
    assert folder.last_step == 7


def test_export_follows_the_last_checkpoint(tmp_path: Path) -> None:
    """Would catch an export of an older step, and a moment without any export."""
    folder = RunFolder(tmp_path)
    for step in (1, 2):
        checkpoint(folder, step, step)
        folder.note_checkpoint(step)
        assert (folder.export / "model.safetensors").stat().st_size == step
