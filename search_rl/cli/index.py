"""`search-rl index`: build, look at and query an index folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from retriever_server.schema import RetrieverName
from search_rl.cli import agent_options as options

if TYPE_CHECKING:
    from retriever_server.manifest import Manifest

app = typer.Typer(help="Build, look at and query a corpus index.", no_args_is_help=True)

_PLAIN_STEP_PERCENT = 10


@app.command()
def build(
    corpus: Annotated[Path, typer.Option(help="Corpus, .jsonl or .jsonl.gz: id and title/text, or contents.")],
    out: Annotated[Path, typer.Option(help="Index folder to write; an index that is there is replaced.")],
    encoder: Annotated[str, typer.Option(help="Hub id, local folder, or the embedded default.")] = "all-MiniLM-L6-v2",
    batch_size: Annotated[int, typer.Option(min=1, help="Passages the encoder takes at once.")] = 32,
    retriever: Annotated[
        Literal["dense", "bm25", "hybrid"],
        typer.Option(help="What the folder is for: dense vectors, BM25 weights, or hybrid: both."),
    ] = "dense",
    kind: Annotated[
        str,
        typer.Option(help="Dense index: flat (exact), fp16, sq8, hnsw, a FAISS factory string, or auto, by size."),
    ] = "flat",
) -> None:
    """Turn a corpus into an index folder."""
    from retriever_server.encoders import SentenceEncoder
    from retriever_server.index import build_index

    model = SentenceEncoder(encoder, batch_size=batch_size) if retriever != "bm25" else None
    with _progress("indexing passages") as progress:
        manifest = build_index(corpus, out, model, kind=kind, with_bm25=retriever != "dense", progress=progress)
    typer.echo(f"{out}: {manifest.num_passages:,} passages{_dense_text(manifest)}{', BM25' if manifest.bm25 else ''}")


def _dense_text(manifest: Manifest) -> str:
    dense = manifest.dense
    return f", {dense.encoder.dimension} dimensions, {dense.kind} ({dense.kind_reason})" if dense else ""


@app.command()
def info(folder: Annotated[Path, typer.Argument(help="Index folder.")]) -> None:
    """Check an index folder and print its manifest."""
    from retriever_server.manifest import manifest_json
    from retriever_server.opening import check_index

    manifest = check_index(folder)
    typer.echo(manifest_json(manifest), nl=False)


@app.command()
def search(
    folder: Annotated[Path, typer.Argument(help="Index folder.")],
    query: Annotated[str, typer.Argument(help="What to look for.")],
    top_k: Annotated[int, typer.Option(min=1, help="Passages to show.")] = 3,
    retriever: Annotated[RetrieverName, typer.Option(help="How to search.")] = "dense",
) -> None:
    """Print the best passages for a query."""
    from retriever_server.opening import open_retriever

    opened, _ = open_retriever(folder, retriever)
    (hits,) = opened.search([query], top_k=top_k)
    for rank, hit in enumerate(hits, start=1):
        typer.echo(f"{rank}. {hit.score:.4f} [{hit.passage.id}] {hit.passage.title}\n   {hit.passage.text}")


@app.command(name="eval")
def evaluate(
    *,
    index: Annotated[Path, typer.Option(help="Index folder.")],
    questions: Annotated[Path, typer.Option(help="Question file, .parquet or .jsonl; the texts are the queries.")],
    top_k: Annotated[int, typer.Option(min=1, max=1000, help="The largest k; smaller ones are shown as well.")] = 10,
    retriever: Annotated[RetrieverName, typer.Option(help="How to search.")] = "dense",
    exact: Annotated[
        Path | None,
        typer.Option(help="Flat index of the same corpus, for recall; else an index that is not flat is encoded anew."),
    ] = None,
    recall: Annotated[bool, typer.Option(help="Measure recall against exact search (dense only).")] = True,
    profile: options.Profile = options.DEFAULT_PROFILE,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many questions, the first.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, nothing else.")] = False,
) -> None:
    """Measure what an index finds: recall against exact search, answers and evidence among the best k, queries/s."""
    import json

    from retriever_server.recall import answer_all
    from search_rl.datasets.questions import read_questions
    from search_rl.evaluation import retrieval_quality as report
    from search_rl.profiles import profile_named
    from search_rl.viewer.progress import wide_console

    scorer = profile_named(profile)
    asked = read_questions(questions).questions[:limit]
    with _progress("encoding for exact search") as progress:
        found = answer_all(
            index,
            retriever,
            [question.text for question in asked],
            report.top_ks(top_k),
            with_recall=recall and retriever == "dense",
            exact_folder=exact,
            progress=progress,
        )
    quality = report.retrieval_quality(asked, found.answers, scorer, top_k, recalls=found.recalls)
    if as_json:
        typer.echo(json.dumps(report.quality_to_json(quality, found.queries_per_second), indent=2))
        return
    wide_console().print(report.quality_table(quality))
    typer.echo(report.quality_summary(quality, found.queries_per_second))


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, a line every tenth otherwise; both on stderr."""
    if not sys.stderr.isatty():
        yield _PlainProgress(what)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _PlainProgress:
    """Prints when another tenth is done."""

    def __init__(self, what: str) -> None:
        self._what, self._next_percent = what, _PLAIN_STEP_PERCENT

    def __call__(self, done: int, total: int) -> None:
        percent = 100 * done // total
        if percent >= self._next_percent:
            self._next_percent = percent + _PLAIN_STEP_PERCENT
            typer.echo(f"{self._what}: {done:,} of {total:,} ({percent} %)", err=True)
