"""`search-rl train`: reinforcement learning through verl, or the exact verl command with --dry-run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def train(
    config: Annotated[Path, typer.Argument(help="Config file, for example configs/demo.yaml.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a config value: section.key=value.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's last checkpoint.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the verl command with all overrides, and stop.")
    ] = False,
) -> None:
    """Train the policy on live retrieval; the run folder keeps every rollout, metric and checkpoint."""
    from search_rl.config import load_config

    loaded = load_config(config, set_ or ())
    if dry_run:
        from search_rl.training.overrides import verl_command
        from search_rl.training.requirements import check_requirements

        check_requirements(loaded)
        typer.echo(verl_command(loaded, resume=resume))
        return
    from functools import partial

    from rich.console import Console

    from search_rl.training.dev_set import best_result
    from search_rl.training.launch import train as run
    from search_rl.training.preflight import check_before_training
    from search_rl.viewer.progress import step_progress

    console = Console(stderr=True)
    plan = check_before_training(loaded)
    if plan is not None:
        console.print(plan.summary, markup=False, highlight=False, soft_wrap=True)
    with step_progress(loaded.trainer.total_steps, console, describe=describe_step) as on_step:
        folder = run(
            loaded, resume=resume, on_step=on_step, on_notice=partial(console.print, markup=False, soft_wrap=True)
        )
    typer.echo(f"model: {folder.export}")
    best = best_result(folder)
    if best is not None:
        typer.echo(f"best on the dev questions: {folder.best} (step {best.step}, exact match {best.exact_match:.3f})")
    typer.echo(f"{folder.root}")


def describe_step(metrics: dict[str, Any]) -> str:
    """One line about a finished step."""
    return (
        f"reward {metrics['reward/total']:.3f}, searches {metrics['agent/searches_per_question']:.2f}, "
        f"format {metrics['agent/format_rate']:.2f}, mixed groups {metrics['group/mixed_share']:.2f}, "
        f"{metrics['timing_s/step']:.0f} s{_describe_dev(metrics)}"
    )


def _describe_dev(metrics: dict[str, Any]) -> str:
    if "dev/exact_match" not in metrics:
        return ""
    bounds = f"[{metrics['dev/exact_match_low']:.3f}, {metrics['dev/exact_match_high']:.3f}]"
    return f"; dev exact match {metrics['dev/exact_match']:.3f} {bounds}, best at step {metrics['dev/best_step']}"
