"""`search-rl data`: make the built-in data set, or check a question file before a long run does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Make and check question files.", no_args_is_help=True)


@app.command()
def factbook(
    out: Annotated[Path, typer.Option(help="Folder for the corpus, the questions and the data card.")] = Path(
        "data/factbook"
    ),
    seed: Annotated[int, typer.Option(help="Decides the split of countries and the wordings.")] = 17,
) -> None:
    """Turn the World Factbook into a corpus and train, dev and test questions (about ten seconds)."""
    from search_rl.datasets.factbook import build_factbook

    card = build_factbook(out, seed=seed)
    typer.echo(f"{out}: {card.num_passages:,} passages from {card.source}, {card.licence}")
    for split, by_kind in card.num_by_kind.items():
        typer.echo(f"  {split + ':':<6} {_counts(by_kind)}, {len(card.countries[split])} countries")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A .parquet or .jsonl file of questions.")],
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="List bad rows and go on.")] = False,
) -> None:
    """Read a question file to its end and count what it holds."""
    from search_rl.datasets.questions import read_questions

    checked = read_questions(file, skip_bad=skip_bad)
    for bad in checked.bad_rows:
        typer.echo(f"{file} row {bad.number}: {bad.fault}", err=True)
    datasets = Counter(question.dataset for question in checked.questions)
    kinds = Counter(question.kind or "of no kind" for question in checked.questions)
    typer.echo(f"{file}: {_counts(datasets)}; {_counts(kinds)}; {len(checked.bad_rows)} bad rows skipped")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
