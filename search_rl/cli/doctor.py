"""`search-rl doctor`: say what this machine has, and whether that is enough."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    retriever_url: Annotated[str | None, typer.Option(help="Also ask this service.")] = None,
) -> None:
    """Check versions, memory, disk, CPU, GPU and the retriever; exit code 1 when something is missing."""
    from rich.console import Console

    from search_rl import health

    console = Console(highlight=False, soft_wrap=True)
    fatal = 0
    for finding in health.examine(retriever_url=retriever_url):
        mark = (
            "[red]MISSING[/]" if finding.is_fatal else "[yellow]note[/]   " if finding.advice else "[green]ok[/]     "
        )
        console.print(f"{mark} {finding.name:<22} {finding.value}{' - ' + finding.advice if finding.advice else ''}")
        fatal += finding.is_fatal
    console.print(f"{fatal} needed things are missing" if fatal else "this machine can run the whole path")
    raise typer.Exit(1 if fatal else 0)
