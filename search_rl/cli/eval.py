"""`search-rl eval`: evaluation of a checkpoint or a served model on question files; its verbs look at results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from search_rl.cli import agent_options as options
from search_rl.cli import eval_results

app = typer.Typer(
    help="Evaluate a model, or with a verb look at the results of evaluations.", invoke_without_command=True
)
app.command()(eval_results.compare)
app.command()(eval_results.seeds)
app.command()(eval_results.audit)
app.command()(eval_results.report)


@app.callback()
def eval(
    context: typer.Context,
    questions: Annotated[
        list[Path] | None,
        typer.Option(help="Question file, .parquet or .jsonl; may be given more than once."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for episodes.jsonl and summary.json; the run folder's eval/ if unset."),
    ] = None,
    model: options.Model = None,
    retriever: options.Retriever = None,
    config: options.ConfigFile = None,
    set_: options.Overrides = None,
    endpoint: options.Endpoint = None,
    served_model: options.ServedModel = None,
    top_k: options.TopK = None,
    prompt: options.Prompt = None,
    profile: options.Profile = options.DEFAULT_PROFILE,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask only so many questions, evenly spaced.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes in flight.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sample at this temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of a sampled evaluation; 0 if unset.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out bad question rows.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the evaluation in --out.")] = False,
) -> None:
    """Ask every question greedily; report exact match with 95 % intervals, searches and stop reasons.

    A verb looks at results instead.
    """
    if context.invoked_subcommand:
        _refuse_options(context)
        return
    import asyncio

    from rich.console import Console

    from search_rl.errors import ConfigError
    from search_rl.evaluation import assemble
    from search_rl.evaluation.report import averages_table, summary_table
    from search_rl.viewer.progress import evaluation_progress, wide_console

    loaded = assemble.read_config(config, set_ or ())
    setup = assemble.setup_from(
        loaded,
        model=model,
        retriever=retriever,
        top_k=top_k,
        prompt=prompt,
        endpoint=endpoint,
        served_model=served_model,
        concurrency=concurrency,
        profile=profile,
        sampling=assemble.sampling_of(temperature, seed),
    )
    out = out or (loaded.run.folder / "eval" if loaded else None)
    if out is None:
        raise ConfigError("no output folder: give --out, or --config")
    asked = assemble.read_question_files(
        questions or (loaded.eval.test if loaded else ()),
        limit=limit or (loaded.eval.questions if loaded else None),
        skip_bad=skip_bad,
    )
    with evaluation_progress(len(asked), Console(stderr=True)) as on_done:
        summary = asyncio.run(assemble.run_evaluation(setup, asked, out, is_resumed=resume, on_done=on_done))
    typer.echo(summary.headline)
    wide_console().print(summary_table(summary))
    if summary.averages:
        wide_console().print(averages_table(summary))
    typer.echo(f"{out / assemble.SUMMARY}\n{out / assemble.HTML}")
    if not summary.is_valid:
        raise typer.Exit(1)


def _refuse_options(context: typer.Context) -> None:
    """Raise ConfigError for an option of the evaluation itself before a verb, which would not be heard."""
    from search_rl.errors import ConfigError

    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = name.rstrip("_").replace("_", "-")
            raise ConfigError(
                f"--{flag} belongs to an evaluation, not to eval {context.invoked_subcommand}: leave it out"
            )
