"""The verbs of `search-rl eval`, which look at result folders: compare, seeds, audit, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, nothing else.")]


def compare(
    first: Annotated[Path, typer.Argument(help="Result folder to compare against.")],
    second: Annotated[Path, typer.Argument(help="Result folder that may be better.")],
    force: Annotated[
        bool, typer.Option("--force", help="Compare results that were not measured alike, and tell how they differ.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Pair two results question by question: won, lost, and whether chance explains it."""
    import json

    from search_rl.evaluation.comparison import compare_results, comparison_table, comparison_to_json
    from search_rl.evaluation.results import load_result
    from search_rl.viewer.progress import wide_console

    later = load_result(second)
    earlier = load_result(first, profile=later.profile)
    comparison = compare_results(earlier, later, is_forced=force)
    if as_json:
        typer.echo(json.dumps(comparison_to_json(comparison), indent=2))
        return
    for warning in comparison.warnings:
        typer.echo(warning)
    for difference in comparison.differences:
        typer.echo(f"not alike: {difference}")
    typer.echo(f"{comparison.second} against {comparison.first}, profile {comparison.profile.name}")
    wide_console().print(comparison_table(comparison))


def seeds(
    folders: Annotated[list[Path], typer.Argument(help="Result folders that differ in their seed.")],
    as_json: Json = False,
) -> None:
    """Put the results of several seeds together: their spread, pass@k, and what is never or always right."""
    import json

    from search_rl.evaluation.results import load_result
    from search_rl.evaluation.seeds import spread_over, spread_table, spread_to_json
    from search_rl.viewer.progress import wide_console

    first = load_result(folders[0])
    spread = spread_over([first, *(load_result(folder, profile=first.profile) for folder in folders[1:])])
    if as_json:
        typer.echo(json.dumps(spread_to_json(spread), indent=2))
        return
    for name, mean in spread.means.items():
        typer.echo(f"{name}  {mean:.3f}")
    typer.echo(f"standard deviation over {len(spread.means)} results {spread.deviation:.4f}")
    wide_console().print(spread_table(spread))


def audit(
    folder: Annotated[Path, typer.Argument(help="Result folder.")],
    train: Annotated[
        list[Path] | None, typer.Option(help="Question file that was trained on; may be given more than once.")
    ] = None,
    direct: Annotated[
        Path | None, typer.Option(help="Result folder of a system that read nothing, on the same questions.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look for leakage and reward hacking; exit with 1 when a check is over its threshold."""
    import json

    from search_rl.datasets.questions import read_questions
    from search_rl.evaluation.audit import report as audits
    from search_rl.evaluation.report_files import write_report
    from search_rl.evaluation.results import load_result
    from search_rl.viewer.progress import wide_console

    questions = [question for path in train for question in read_questions(path).questions] if train else None
    found = audits.audit_folder(folder, train=questions, closed_book=load_result(direct) if direct else None)
    audits.write_audit(folder, found)
    result = load_result(folder)
    write_report(result, result.summary())
    if as_json:
        typer.echo(json.dumps(audits.audit_to_json(found), indent=2))
    else:
        typer.echo(found.headline)
        wide_console().print(audits.audit_table(found))
        typer.echo("\n".join([*(f"left out: {reason}" for reason in found.left_out), *audits.example_lines(found)]))
    if found.flagged:
        raise typer.Exit(1)


def report(folder: Annotated[Path, typer.Argument(help="Result folder.")]) -> None:
    """Write report.md, report.html and row.csv of a result anew, also of one from before there were any."""
    from search_rl.evaluation.report_files import HTML, write_report
    from search_rl.evaluation.results import load_result

    result = load_result(folder)
    summary = result.summary()
    write_report(result, summary)
    typer.echo(f"{summary.headline}\n{folder / HTML}")
