"""`search-rl eval`: evaluation of one system or several on question files; its verbs look at results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_rl.cli import agent_options as options
from search_rl.cli import eval_results

if TYPE_CHECKING:
    from search_rl.config import Config
    from search_rl.evaluation.assemble import Setup
    from search_rl.evaluation.suite import OnDone, Plan, SystemResult, Watch
    from search_rl.types import Question

NUM_SHOWN_FAILURES = 5

app = typer.Typer(invoke_without_command=True)
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
    system: Annotated[
        list[str] | None,
        typer.Option(
            "--system",
            "--systems",
            help="agent (default), direct, cot, rag, ircot, oracle, random, empty; several with commas, or all.",
        ),
    ] = None,
    rollouts: Annotated[Path | None, typer.Option(help="A stored rollout file to score, in place of a system.")] = None,
    model: options.Model = None,
    retriever: options.Retriever = None,
    config: options.ConfigFile = None,
    set_: options.Overrides = None,
    endpoint: options.Endpoint = None,
    served_model: options.ServedModel = None,
    api: options.Api = None,
    endpoint_token_file: options.EndpointTokenFile = None,
    top_k: options.TopK = None,
    prompt: options.Prompt = None,
    protocol: options.Protocol = None,
    profile: options.Profile = options.DEFAULT_PROFILE,
    corpus: Annotated[
        Path | None, typer.Option(help="Corpus file, for the systems oracle and random; the config's if unset.")
    ] = None,
    prices: Annotated[Path | None, typer.Option(help="YAML table of prices: adds money to the cost.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask only so many questions, evenly spaced.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes in flight.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sample at this temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of a sampled evaluation; 0 if unset.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out bad question rows.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the evaluation in --out.")] = False,
) -> None:
    """Ask every question greedily; report exact match with 95 % intervals, retrieval, cost and stop reasons.

    A verb looks at results instead.
    """
    if context.invoked_subcommand:
        _refuse_options(context)
        return
    from retriever_server.corpus import read_corpus
    from search_rl.config import read_config
    from search_rl.errors import ConfigError
    from search_rl.evaluation import assemble
    from search_rl.evaluation.cost import read_prices
    from search_rl.evaluation.suite import Plan
    from search_rl.evaluation.systems import systems_named

    if rollouts and system:
        raise ConfigError(f"--rollouts takes the place of --system {system[0]}: give one of the two")
    loaded = read_config(config, set_ or ())
    setup = assemble.setup_from(
        loaded,
        model=model or (str(rollouts) if rollouts else None),
        retriever=retriever,
        top_k=top_k,
        prompt=prompt,
        protocol=protocol,
        endpoint=endpoint,
        served_model=served_model,
        api=api,
        endpoint_token_file=endpoint_token_file,
        concurrency=concurrency,
        profile=profile,
        sampling=assemble.sampling_of(temperature, seed),
    )
    corpus = corpus or (loaded.eval.corpus if loaded else None)
    plan = Plan(
        systems=systems_named(name for names in system or ["agent"] for name in names.split(",")),
        questions=_questions(questions, loaded, rollouts, limit=limit, skip_bad=skip_bad),
        out=_folder(out, loaded),
        is_resumed=resume,
        corpus=corpus,
        passages=read_corpus(corpus) if corpus else (),
        prices=read_prices(prices, setup.model_name) if prices else None,
    )
    agent = f"protocol {setup.agent.protocol}, prompt {setup.agent.prompt}, budgets {setup.budgets_label}"
    _report(_run(setup, plan, rollouts), plan, None if rollouts else agent)


def _refuse_options(context: typer.Context) -> None:
    """Raise ConfigError for an option of the evaluation itself before a verb, which would not be heard."""
    from search_rl.errors import ConfigError

    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = name.rstrip("_").replace("_", "-")
            verb = context.invoked_subcommand
            raise ConfigError(f"--{flag} belongs to an evaluation, not to eval {verb}: leave it out")


def _questions(
    files: Sequence[Path] | None, loaded: Config | None, rollouts: Path | None, *, limit: int | None, skip_bad: bool
) -> tuple[Question, ...]:
    """Those of the files, else of the config, else of the stored rollouts."""
    from search_rl.evaluation import assemble
    from search_rl.evaluation.stored_answers import questions_in

    files = files or (loaded.eval.test if loaded else ())
    limit = limit or (loaded.eval.questions if loaded else None)
    if rollouts is not None and not files:
        return assemble.balanced(questions_in(rollouts), limit)
    return assemble.read_question_files(files, limit=limit, skip_bad=skip_bad)


def _folder(out: Path | None, loaded: Config | None) -> Path:
    from search_rl.errors import ConfigError

    out = out or (loaded.run.folder / "eval" if loaded else None)
    if out is None:
        raise ConfigError("no output folder: give --out, or --config")
    return out


def _run(setup: Setup, plan: Plan, rollouts: Path | None) -> tuple[SystemResult, ...]:
    import asyncio

    from search_rl.evaluation.suite import run_systems, score_rollouts

    if rollouts is None:
        return asyncio.run(run_systems(setup, plan, _watch(plan)))
    return (asyncio.run(score_rollouts(rollouts, setup, plan, _watch(plan))),)


def _watch(plan: Plan) -> Watch:
    """A progress display for each system in turn."""
    from rich.console import Console

    from search_rl.viewer.progress import evaluation_progress

    @contextmanager
    def watch(name: str) -> Iterator[OnDone]:
        console = Console(stderr=True)
        if len(plan.systems) > 1:
            console.print(f"[{name}]", markup=False, highlight=False)
        with evaluation_progress(len(plan.questions), console) as on_done:
            yield on_done

    return watch


def _report(results: Sequence[SystemResult], plan: Plan, agent: str | None) -> None:
    """A line a system that says first whether it may be quoted, how the agent is spoken to, then the tables."""
    from search_rl.evaluation.report_files import HTML
    from search_rl.evaluation.result_folder import SUITE, SUMMARY, write_json
    from search_rl.evaluation.suite_table import suite_row, suite_table
    from search_rl.evaluation.tables import averages_table, summary_table
    from search_rl.viewer.progress import wide_console

    for result in results:
        name = f"{result.name}: " if len(results) > 1 else ""
        typer.echo(f"{name}{result.summary.headline}")
        _list_failures(result)
    if agent:
        typer.echo(agent)
    if len(results) == 1:
        wide_console().print(summary_table(results[0].summary))
        if results[0].summary.averages:
            wide_console().print(averages_table(results[0].summary))
    wide_console().print(suite_table(results))
    if len(results) > 1:
        rows = [suite_row(result) for result in results]
        write_json(plan.out / SUITE, rows)
    typer.echo(f"{plan.out / (SUITE if len(results) > 1 else SUMMARY)}")
    for result in results:
        typer.echo(f"{result.folder / HTML}")
    if not all(result.summary.is_valid for result in results):
        raise typer.Exit(1)


def _list_failures(result: SystemResult) -> None:
    from search_rl.evaluation.result_folder import FAILED

    failed = result.measured.failed
    for question in failed[:NUM_SHOWN_FAILURES]:
        typer.echo(f"  failed: {question.key} ({question.stop_reason}) {question.error}".rstrip())
    if len(failed) > NUM_SHOWN_FAILURES:
        typer.echo(f"  and {len(failed) - NUM_SHOWN_FAILURES} more in {result.folder / FAILED}")
