"""`search-rl data`: make the built-in data set, get published ones, or check a file before a long run does."""

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
def get(
    what: Annotated[
        str, typer.Argument(metavar="NAME|FILE", help="A published set (see `search-rl data list`) or a file of yours.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for NAME.parquet and its card.")] = Path("data/questions"),
    source: Annotated[
        Path | None, typer.Option("--from", help="Folder laid out as the set's repository is: nothing is downloaded.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="The hub's revision of a published set.")] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="FIELD=COLUMN", help="Your column for id, question, golden_answers, kind …"),
    ] = None,
    separator: Annotated[str | None, typer.Option(help="What stands between several golden answers in a text.")] = None,
    name: Annotated[str | None, typer.Option(help="What to call your file's questions (its stem).")] = None,
    split: Annotated[str, typer.Option(help="What your file's questions are for: train, dev or test.")] = "test",
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave bad rows out, and list them in the card.")
    ] = False,
    allow_other_size: Annotated[
        bool, typer.Option("--allow-other-size", help="Take a published set also with other rows than it is known for.")
    ] = False,
) -> None:
    """Bring a question set into the one schema that training and evaluation read."""
    from search_rl.datasets.benchmarks import benchmark_named
    from search_rl.datasets.foreign import parse_mapping
    from search_rl.datasets.get import get_benchmark, get_file

    file = Path(what)
    if file.suffix:
        mapping = parse_mapping(fields or [], separator)
        card = get_file(file, out, mapping=mapping, name=name or file.stem, split=split, skip_bad=skip_bad)
    else:
        card = get_benchmark(
            benchmark_named(what),
            out,
            folder=source,
            revision=revision,
            skip_bad=skip_bad,
            allow_other_size=allow_other_size,
        )
    num_bad = sum(len(part.bad_rows) for part in card.sources)
    evidence = f"{card.num_with_evidence:,} name evidence"
    typer.echo(f"{out / card.name}.parquet: {_counts(card.num_by_dataset)}; {evidence}; {num_bad} bad rows skipped")


@app.command("list")
def list_sets() -> None:
    """The published sets that `get` knows, with their sizes and where they come from."""
    from search_rl.datasets.benchmarks import BENCHMARKS

    for benchmark in BENCHMARKS.values():
        places = ", ".join(dict.fromkeys(f"{part.repository}/{part.path}" for part in benchmark.parts))
        typer.echo(f"{benchmark.name:<18} {benchmark.split:<6} {benchmark.num_rows:>8,}  {places}")


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
