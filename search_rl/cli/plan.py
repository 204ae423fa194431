"""`search-rl plan`: whether a run fits its machines, and how long it will take, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def plan(
    config: Annotated[Path, typer.Argument(help="Config file, for example configs/qwen2.5-3b-grpo-8gpu.yaml.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a config value: section.key=value.")] = None,
    memory_gib: Annotated[
        float | None,
        typer.Option(min=0.1, help="Memory of one GPU, or of this machine where the platform is cpu, in GiB."),
    ] = None,
    measured: Annotated[
        Path | None, typer.Option(help="Folder of a run on the same hardware: gives steps per hour.")
    ] = None,
) -> None:
    """Estimate the memory of each device and the tokens of a step; exit 2 when something cannot fit."""
    from search_rl.config import load_config
    from search_rl.training.plan import GIB, device_memory_bytes, plan, read_shape
    from search_rl.viewer.plan import plan_table
    from search_rl.viewer.progress import wide_console

    loaded = load_config(config, set_ or ())
    memory_bytes = int(memory_gib * GIB) if memory_gib else device_memory_bytes(loaded)
    made = plan(loaded, read_shape(loaded.model.path), memory_bytes=memory_bytes, measured=measured)
    wide_console().print(plan_table(made))
    made.check()
