"""`search-rl demo`: the whole path, stage by stage, as a user would type it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    config: Annotated[Path, typer.Option(help="Config file.")] = Path("configs/demo.yaml"),
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a config value: section.key=value.")] = None,
) -> None:
    """Build data, model and index, serve, warm up, train and evaluate three times; print one table."""
    from search_rl.demo import run_demo

    run_demo(config, set_ or ())
