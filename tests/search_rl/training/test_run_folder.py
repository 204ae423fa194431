"""What a run leaves behind, and what it does not lose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from search_rl.config import load_config
from search_rl.errors import TrainingError
from search_rl.training.checkpoints import LATEST, SEAL
from search_rl.training.resume import check_folder, rewind
from search_rl.training.run_folder import RunFolder, read_metrics

LARGER_THAN_ANY_DISK_BYTES = 8 * 1024**4


def write(folder: RunFolder, step: int, num_bytes: int = 1) -> Path:
    """A checkpoint as verl leaves it: its files, and then its number as the latest one."""
    root = folder.checkpoint(step)
    (root / "actor" / "huggingface").mkdir(parents=True)
    for name in ("data.pt", "actor/model_rank_0.pt", "actor/optim_rank_0.pt", "actor/huggingface/config.json"):
        (root / name).write_bytes(bytes(100 + step))
    with (root / "actor" / "huggingface" / "model.safetensors").open("wb") as file:
        file.truncate(num_bytes)
    (folder.checkpoints / LATEST).write_text(str(step))
    return root


def checkpoint(folder: RunFolder, step: int, num_bytes: int = 1, *, keep: int = 9) -> Path:
    root = write(folder, step, num_bytes)
    folder.note_checkpoint(step, keep=keep)
    return root


def found(folder: RunFolder) -> tuple[str, str, list[int], list[str]]:
    """What verl goes on from, what is exported, what is there, and what the user is told, after a rewind."""
    notices: list[str] = []
    rewind(folder, notices.append)
    return (
        (folder.checkpoints / LATEST).read_text(),
        folder.export.resolve().parent.parent.name,
        folder.steps,
        [notice.removeprefix("the checkpoint of ") for notice in notices],
    )


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


def test_result_that_was_owed_is_in_the_row_of_its_step(tmp_path: Path) -> None:
    """A dev result that a kill had prevented was asked for again at each resume: it went nowhere but to `best`."""
    folder = RunFolder(tmp_path)
    log = folder.metrics_log(1)
    log.log({"reward": 0.1}, 1)
    log.log({"reward": 0.2}, 2)
    folder.add_metrics(2, {"dev/exact_match": 0.5})
    folder.add_metrics(3, {"dev/exact_match": 0.7})  # no row yet: verl writes this figure with the others
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows == [{"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2, "dev/exact_match": 0.5}]


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
        assert (folder.export / "model.safetensors").stat().st_size == step


def truncate_optimiser(root: Path) -> None:
    with (root / "actor" / "optim_rank_0.pt").open("r+b") as file:
        file.truncate(7)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (truncate_optimiser, "actor/optim_rank_0.pt has 7 bytes of 103"),
        (lambda root: (root / "data.pt").unlink(), "data.pt is missing"),
        (lambda root: (root / SEAL).unlink(), "it was not finished"),
        (lambda root: (root / SEAL).write_text('{"data.pt": 1'), f"its {SEAL} is damaged"),
    ],
    ids=["cut", "missing", "unfinished", "cut list"],
)
def test_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, damage: Callable[[Path], None], why: str
) -> None:
    """verl loaded whatever its tracker named: a cut file ended the resume, a lost data.pt began the data again."""
    folder = RunFolder(tmp_path)
    for step in (1, 2):
        checkpoint(folder, step)
    damage(checkpoint(folder, 3))
    assert folder.last_step == 2
    assert found(folder) == ("2", "global_step_2", [1, 2], [f"step 3 is passed over: {why}; going on from step 2"])
    assert found(folder) == ("2", "global_step_2", [1, 2], [])


def test_tracker_that_a_kill_left_empty_is_written_anew(tmp_path: Path) -> None:
    """The tracker was read as a number: an empty one was a traceback, and the run could not be resumed."""
    folder = RunFolder(tmp_path)
    checkpoint(folder, 1)
    (folder.checkpoints / LATEST).write_text("")
    assert folder.last_step == 1
    assert found(folder) == ("1", "global_step_1", [1], [])


def test_resume_without_a_whole_checkpoint_names_what_is_wrong_and_removes_nothing(tmp_path: Path) -> None:
    """Would catch a run that begins again at step 1, and the last trace of a long run deleted."""
    folder, config = RunFolder(tmp_path), load_config(Path("configs/demo.yaml"))
    with pytest.raises(TrainingError, match=r"nothing to resume in .*: no whole checkpoint; start without --resume"):
        check_folder(folder, config, resume=True)
    truncate_optimiser(checkpoint(folder, 4))
    with pytest.raises(
        TrainingError, match=r"no whole checkpoint \(step 4: actor/optim_rank_0.pt has 7 bytes of 104\)"
    ):
        check_folder(folder, config, resume=True)
    rewind(folder, pytest.fail)
    assert folder.steps == [4]


def test_last_checkpoints_stay_also_after_a_resume(tmp_path: Path) -> None:
    """verl forgot at each start what it had saved before: every resume left its checkpoints for ever."""
    for steps in ((1, 2), (3,), (4, 5)):
        folder = RunFolder(tmp_path)
        for step in steps:
            checkpoint(folder, step, keep=2)
        assert folder.steps == [steps[-1] - 1, steps[-1]]
    assert not folder.fault(4)


def test_folder_where_a_link_belongs_is_told(tmp_path: Path) -> None:
    """A run that was copied with its links followed has a folder `export`: replacing it was a traceback."""
    folder = RunFolder(tmp_path)
    checkpoint(folder, 1)
    folder.export.unlink()
    folder.export.mkdir()
    with pytest.raises(TrainingError, match=r"export is a folder, and the run keeps a link there: move it away"):
        found(folder)


def test_copy_that_a_user_put_aside_is_no_checkpoint(tmp_path: Path) -> None:
    """Would catch a name that is read as a number, and a copy that is pruned."""
    folder = RunFolder(tmp_path)
    checkpoint(folder, 1).rename(folder.checkpoints / "global_step_1.bak")
    checkpoint(folder, 2, keep=1)
    assert (folder.steps, folder.last_step) == ([2], 2)
    assert (folder.checkpoints / "global_step_1.bak" / "data.pt").exists()


def test_old_checkpoint_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    """verl removed the old one before the new one had its place in the data: a kill there left none."""
    folder = RunFolder(tmp_path)
    checkpoint(folder, 1, keep=1)
    write(folder, 2)
    assert (folder.last_step, folder.steps) == (1, [1, 2])
    folder.note_checkpoint(2, keep=1)
    assert (folder.last_step, folder.steps) == (2, [2])
