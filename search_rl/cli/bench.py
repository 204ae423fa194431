"""`search-rl bench`: what this machine reaches, measured on the real parts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from search_rl.cli import agent_options as options
from search_rl.cli import bench_retrieval

app = typer.Typer(help="Measure the real parts on this machine.", no_args_is_help=True)
app.command()(bench_retrieval.retrieval)
app.command()(bench_retrieval.soak)
app.command()(bench_retrieval.synthetic)
app.command()(bench_retrieval.build)


@app.callback()
def bench() -> None:
    """Measure the real parts on this machine."""


@app.command()
def rollout(
    questions: Annotated[Path | None, typer.Option(help="Question file; the config's train files if unset.")] = None,
    model: options.Model = None,
    retriever: options.Retriever = None,
    config: options.ConfigFile = None,
    set_: options.Overrides = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes in a batch.")] = 32,
    samples: Annotated[int, typer.Option(min=1, help="Siblings of a question; must divide --episodes.")] = 4,
    latency_ms: Annotated[float, typer.Option(min=0, help="Artificial latency of each request for passages.")] = 0.0,
    repeats: Annotated[int, typer.Option(min=1, help="Batches under each loop; medians are compared.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Write the figures to this JSON file too.")] = None,
) -> None:
    """Compare independent episodes with a loop that goes turn by turn: same engine, questions and seeds.

    Serve the index with --cache 0, or the loops that come later are answered faster.
    """
    import asyncio
    import json

    from search_rl.config import read_config
    from search_rl.engines.base import Sampling
    from search_rl.errors import ConfigError
    from search_rl.evaluation import rollout_bench as benching
    from search_rl.evaluation.assemble import read_question_files, setup_from
    from search_rl.evaluation.result_folder import settings_of
    from search_rl.evaluation.systems import SYSTEMS
    from search_rl.viewer.progress import wide_console

    loaded = read_config(config, set_ or ())
    setup = setup_from(loaded, model=model, retriever=retriever, concurrency=episodes)
    if episodes % samples:
        raise ConfigError(f"--samples {samples} must divide --episodes {episodes}")
    if out and not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    files = [questions] if questions else list(loaded.data.train if loaded else ())
    asked = read_question_files(files, limit=episodes // samples)
    sampling = Sampling(1.0, seed=1)
    if loaded:
        sampling = Sampling(loaded.rollout.temperature, loaded.rollout.top_p, seed=loaded.run.seed)

    def tell(report: benching.LoopReport) -> None:
        typer.echo(f"{report.loop}: {report.num_episodes} episodes in {report.seconds:.1f} s", err=True)

    async def run() -> list[benching.LoopReport]:
        async with benching.open_bench(
            setup, asked, samples=samples, sampling=sampling, latency_seconds=latency_ms / 1000
        ) as bench:
            return await benching.compare(bench, repeats=repeats, on_report=tell)

    reports = asyncio.run(run())
    settings = {
        **settings_of(setup, SYSTEMS["agent"], None),
        "questions": len(asked),
        "samples": samples,
        "latency_ms": latency_ms,
    }
    figures = benching.bench_to_json(reports, settings)
    wide_console().print(benching.bench_table(reports))
    for loop, ratio in figures["speed_up"].items():
        typer.echo(f"independent episodes against {loop}: {ratio:.2f} times the tokens a second")
    if out:
        out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        typer.echo(f"{out}")


@app.command()
def orchestration(
    model: Annotated[str, typer.Option(help="Whose tokenizer is used; its weights are not.")],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes, each with one search.")] = 5000,
    result: Annotated[
        Path | None, typer.Option(help="A result of `eval` with a real engine, to say what share of its time this is.")
    ] = None,
) -> None:
    """Measure what an evaluation costs besides the model: a scripted engine, a retriever with its passages at hand."""
    import asyncio

    from search_rl.codec import load_codec
    from search_rl.evaluation.orchestration_bench import engine_seconds_per_question, run_orchestration

    engine_seconds = engine_seconds_per_question(result) if result else None
    report = asyncio.run(run_orchestration(load_codec(model), num_episodes=episodes))
    typer.echo(f"{report}")
    if engine_seconds is not None:
        share = report.seconds_per_episode / engine_seconds
        typer.echo(f"{share:.2%} of the engine's time in {result}, {1000 * engine_seconds:.1f} ms a question")
