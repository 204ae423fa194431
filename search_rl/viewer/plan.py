"""A plan as a table."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table

from search_rl.training.plan import GIB, Demand, Plan


def plan_table(plan: Plan) -> Group:
    """The demands of both phases with their sums, then what a step has to do."""
    table = Table("GiB a device", "update", "rollout", box=None, header_style="bold")
    names = dict.fromkeys(demand.name for demand in (*plan.update, *plan.rollout))
    for name in names:
        table.add_row(name, _size(plan.update, name), _size(plan.rollout, name))
    table.add_row("all", _sum(plan.update), _sum(plan.rollout), style="bold")
    limit = (
        "unknown: give --memory-gib or hardware.memory_gib"
        if plan.memory_bytes is None
        else f"{plan.memory_bytes / GIB:.1f} GiB"
    )
    lines = [
        f"memory of a device: {limit}",
        f"parameters: {plan.shape.num_parameters / 1e9:.2f} billion",
        f"a step: {plan.episodes_per_step:,} episodes, at most {plan.max_tokens_per_step:,} tokens",
    ]
    if plan.steps_per_hour is not None:
        lines.append(f"steps an hour, from the measured run: {plan.steps_per_hour:.1f}")
    return Group(table, *lines)


def _size(phase: tuple[Demand, ...], name: str) -> str:
    return next((f"{demand.num_bytes / GIB:.2f}" for demand in phase if demand.name == name), "")


def _sum(phase: tuple[Demand, ...]) -> str:
    return f"{sum(demand.num_bytes for demand in phase) / GIB:.2f}"
