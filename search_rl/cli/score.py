"""`search-rl score`: score a file of predictions, whoever made them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from search_rl.cli import agent_options as options


def score(
    file: Annotated[Path, typer.Argument(help="JSON lines of id, prediction and golden_answers.")],
    profile: options.Profile = options.DEFAULT_PROFILE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, nothing else.")] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="List bad rows, leave them out and count them.")] = False,
) -> None:
    """Score predictions, row by row and in the mean: exact match, F1, cover match."""
    import json

    from search_rl.datasets.predictions import read_predictions
    from search_rl.evaluation import scored_predictions as report
    from search_rl.profiles import profile_named
    from search_rl.viewer.progress import wide_console

    scorer = profile_named(profile)
    read = read_predictions(file, skip_bad=skip_bad)
    for bad in read.bad_rows:
        typer.echo(f"{file} line {bad.number}: {bad.fault}", err=True)
    scored = report.score_predictions(read, scorer)
    if as_json:
        typer.echo(json.dumps(report.scored_to_json(scored), indent=2))
        return
    typer.echo(scored.headline)
    typer.echo("\n".join(report.row_lines(scored)))
    wide_console().print(report.means_table(scored))
