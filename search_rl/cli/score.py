"""`search-rl score`: score a file of predictions, whoever made them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from search_rl.cli import agent_options as options

if TYPE_CHECKING:
    from search_rl.datasets.predictions import Prediction
    from search_rl.evaluation.judge import Judgement


def score(
    file: Annotated[Path, typer.Argument(help="JSON lines of id, prediction and golden_answers.")],
    profile: options.Profile = options.DEFAULT_PROFILE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, nothing else.")] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="List bad rows, leave them out and count them.")] = False,
    judge: Annotated[
        str | None, typer.Option(help="URL of an OpenAI-style chat endpoint whose model judges the answers too.")
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="Name of the judging model at --judge.")] = None,
    judge_token_file: Annotated[Path | None, typer.Option(help="File with the bearer token of --judge.")] = None,
    verdicts: Annotated[
        Path | None, typer.Option(help="Where the judge's own words are kept; FILE.MODEL.verdicts.jsonl if unset.")
    ] = None,
) -> None:
    """Score predictions, row by row and in the mean: exact match, F1, cover match.

    A row holds a prediction and its accepted answers, so none can be extra. A prediction that is absent or null counts
    0 and is told first. A row that cannot be used, or an id used before, is named and ends it, unless --skip-bad.
    """
    import json

    from search_rl.datasets.predictions import read_predictions
    from search_rl.evaluation import scored_predictions as report
    from search_rl.profiles import profile_named
    from search_rl.viewer.progress import wide_console

    scorer = profile_named(profile)
    judging = _judging(file, judge, judge_model, judge_token_file, verdicts)
    read = read_predictions(file, skip_bad=skip_bad)
    for bad in read.bad_rows:
        typer.echo(f"{file} line {bad.number}: {bad.fault}", err=True)
    scored = report.score_predictions(read, scorer)
    judgement = judging and judging(read.predictions)
    if as_json:
        typer.echo(json.dumps({**report.scored_to_json(scored), **_judged(judgement)}, indent=2))
    else:
        typer.echo(scored.headline)
        typer.echo("\n".join(report.row_lines(scored)))
        wide_console().print(report.means_table(scored))
        if judgement:
            typer.echo(judgement.headline)
            typer.echo("\n".join(f"no verdict on {verdict.id}: {verdict.fault}" for verdict in judgement.failed))
    if judgement and not judgement.is_valid:
        raise typer.Exit(1)


def _judged(judgement: Judgement | None) -> dict[str, Any]:
    if judgement is None:
        return {}
    from search_rl.evaluation.judge import judgement_to_json

    return {"judge": judgement_to_json(judgement)}


def _judging(
    file: Path, url: str | None, model: str | None, token_file: Path | None, verdicts: Path | None
) -> Callable[[Sequence[Prediction]], Judgement] | None:
    """What asks the judge, None where none is wanted. Raises ConfigError for options that do not go together."""
    from search_rl.errors import ConfigError

    if url is None:
        for name, value in (("model", model), ("token-file", token_file)):
            if value:
                raise ConfigError(f"--judge-{name} {value} needs --judge, the URL of the endpoint")
        if verdicts:
            raise ConfigError(f"--verdicts {verdicts} needs --judge, the URL of the endpoint")
        return None
    if not model:
        raise ConfigError(f"--judge {url} needs --judge-model: a judge without a name cannot be quoted")
    return partial(
        _ask_judge, url=url, model=model, token_file=token_file, path=verdicts or _verdicts_path(file, model)
    )


def _ask_judge(
    predictions: Sequence[Prediction], *, url: str, model: str, token_file: Path | None, path: Path
) -> Judgement:
    import asyncio

    from search_rl.engines.endpoint import Endpoint
    from search_rl.evaluation.judge import judge_predictions

    async def ask() -> Judgement:
        async with Endpoint(url, token_file=token_file) as endpoint:
            return await judge_predictions(predictions, endpoint=endpoint, model=model, verdicts_path=path)

    return asyncio.run(ask())


def _verdicts_path(file: Path, model: str) -> Path:
    """Beside the predictions, one file a judge."""
    import re

    return file.with_name(f"{file.stem}.{re.sub('[^A-Za-z0-9.-]+', '_', model)}.verdicts.jsonl")
