"""`search-rl sft`: a short warm-up that teaches the protocol and leaves the policy to RL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def sft(
    config: Annotated[Path, typer.Argument(help="Config file, for example configs/demo.yaml.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the warm-up; the run folder + '-sft' if unset.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a config value: section.key=value.")] = None,
) -> None:
    """Make demonstrations from train questions with the live retriever, and fit the model to them."""
    from rich.console import Console

    from search_rl.config import load_config
    from search_rl.training.preflight import check_before_warm_up
    from search_rl.training.sft import warm_up
    from search_rl.viewer.progress import step_progress

    loaded = load_config(config, set_ or ())
    check_before_warm_up(loaded)
    folder = out or loaded.run.folder.with_name(f"{loaded.run.name}-sft")
    with step_progress(None, Console(stderr=True), describe=lambda step: f"loss {step['train/loss']:.3f}") as on_step:
        export = warm_up(loaded, folder, on_step=on_step)
    typer.echo(f"{export}")
