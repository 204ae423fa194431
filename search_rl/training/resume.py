"""What a run finds in its folder: nothing, or the checkpoint to go on from."""

from __future__ import annotations

from collections.abc import Callable

from search_rl.config import Config
from search_rl.errors import TrainingError
from search_rl.training.run_folder import RunFolder


def check_folder(folder: RunFolder, config: Config, *, resume: bool) -> None:
    """Raises TrainingError where an earlier run would be written over, or where a resume has nothing to go on with."""
    last = folder.last_step
    if resume and last is None:
        raise TrainingError(
            f"nothing to resume in {folder.root}: no whole checkpoint{_newest_fault(folder)}; start without --resume, "
            f"under another name where there is an earlier run: --set run.name=NAME"
        )
    if not resume and folder.root.exists() and any(folder.root.iterdir()):
        raise TrainingError(
            f"{folder.root} holds an earlier run: go on with --resume, or choose another name with --set run.name=NAME"
        )
    if resume and last is not None and last >= config.trainer.total_steps:
        raise TrainingError(
            f"{folder.root} is already at step {last} of trainer.total_steps={config.trainer.total_steps}: raise that "
            f"to train on"
        )


def _newest_fault(folder: RunFolder) -> str:
    steps = folder.steps
    return f" (step {steps[-1]}: {folder.fault(steps[-1])})" if steps else ""


def rewind(folder: RunFolder, on_notice: Callable[[str], None]) -> None:
    """Let verl go on from the last whole checkpoint, if there is one.

    A later one, half-written when the run was killed or damaged since, is told to `on_notice` and removed: its step is
    done again.
    """
    last = folder.last_step
    if last is None:
        return
    for step in folder.steps:
        if step > last:
            on_notice(f"the checkpoint of step {step} is passed over: {folder.fault(step)}; going on from step {last}")
    folder.rewind(last)
