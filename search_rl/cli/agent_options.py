"""Options that `eval` and `ask` share: who is asked, and under which rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[str | None, typer.Option(help="Checkpoint folder, or hub id; the config's if unset.")]
Retriever = Annotated[str | None, typer.Option(help="URL of the retrieval service.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Config file; options given here win.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="section.key=value, on top of the config.")]
Endpoint = Annotated[
    str | None, typer.Option(help="URL of a vLLM server to sample from; --model then gives the tokenizer.")
]
ServedModel = Annotated[str | None, typer.Option(help="Name of the model at --endpoint; --model's if unset.")]
TopK = Annotated[int | None, typer.Option(min=1, help="Passages per search.")]
Prompt = Annotated[str | None, typer.Option(help="Wording of the instructions: search_r1 or short.")]
