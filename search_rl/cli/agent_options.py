"""Options that commands share: who is asked, under which rules, and who scores the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from search_rl.profiles import PROFILES, SEARCH_R1

Model = Annotated[str | None, typer.Option(help="Checkpoint folder, or hub id; the config's if unset.")]
Retriever = Annotated[str | None, typer.Option(help="URL of the retrieval service.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Config file; options given here win.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="section.key=value, on top of the config.")]
Endpoint = Annotated[
    str | None, typer.Option(help="URL of an OpenAI-style server to sample from; --model then gives the tokenizer.")
]
Api = Annotated[str | None, typer.Option(help="How the endpoint answers: tokens, text or chat; it is asked if unset.")]
EndpointTokenFile = Annotated[Path | None, typer.Option(help="File with the bearer token of the endpoint.")]
ServedModel = Annotated[str | None, typer.Option(help="Name of the model at --endpoint; --model's if unset.")]
TopK = Annotated[int | None, typer.Option(min=1, help="Passages per search.")]
Prompt = Annotated[str | None, typer.Option(help="Wording of the instructions: search_r1 or short.")]
Protocol = Annotated[str | None, typer.Option(help="How the agent calls the search: tags or tool_call.")]
Profile = Annotated[str, typer.Option(help=f"Scorer: {', '.join(PROFILES)}.")]
DEFAULT_PROFILE = SEARCH_R1.name
