"""`search-rl model`: write a small policy that needs no hub."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Name(StrEnum):
    """The models that can be written."""

    SMOLLM2_135M = "smollm2-135m"
    TINY = "tiny"


def model(
    name: Annotated[Name, typer.Argument(help="smollm2-135m: a real chat model. tiny: two random layers, for tests.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write; runs/models/NAME when not given.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the tiny model's random weights.")] = 0,
) -> None:
    """Write a small model as a Hugging Face folder; does nothing when it is there already."""
    from rich.console import Console

    from search_rl import models

    os.environ.setdefault("TQDM_DISABLE", "1")  # read when a library imports tqdm; the spinner is enough
    folder = out or Path("runs/models") / name
    with Console(stderr=True).status(f"writing {name} to {folder}"):
        match name:
            case Name.SMOLLM2_135M:
                written = models.export_smollm2_135m(folder)
            case Name.TINY:
                written = models.export_tiny(folder, seed=seed)
    typer.echo(f"{folder} {'written' if written else 'is already there'}")
