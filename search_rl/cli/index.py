"""`search-rl index`: build, look at and query an index folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Build, look at and query a corpus index.", no_args_is_help=True)

_PLAIN_STEP_PERCENT = 10


@app.command()
def build(
    corpus: Annotated[Path, typer.Option(help="Corpus, .jsonl or .jsonl.gz: id and title/text, or contents.")],
    out: Annotated[Path, typer.Option(help="Index folder to write; an index that is there is replaced.")],
    encoder: Annotated[str, typer.Option(help="Hub id, local folder, or the embedded default.")] = "all-MiniLM-L6-v2",
    batch_size: Annotated[int, typer.Option(min=1, help="Passages the encoder takes at once.")] = 32,
) -> None:
    """Encode a corpus into an index folder."""
    from retriever_server.encoders import SentenceEncoder
    from retriever_server.index import build_index

    model = SentenceEncoder(encoder, batch_size=batch_size)
    with _progress("encoding passages") as progress:
        manifest = build_index(corpus, out, model, progress=progress)
    typer.echo(f"{out}: {manifest.num_passages:,} passages, {manifest.encoder.dimension} dimensions")


@app.command()
def info(folder: Annotated[Path, typer.Argument(help="Index folder.")]) -> None:
    """Check an index folder and print its manifest."""
    from retriever_server.index import open_index
    from retriever_server.manifest import manifest_json

    _, manifest = open_index(folder)
    typer.echo(manifest_json(manifest), nl=False)


@app.command()
def search(
    folder: Annotated[Path, typer.Argument(help="Index folder.")],
    query: Annotated[str, typer.Argument(help="What to look for.")],
    top_k: Annotated[int, typer.Option(min=1, help="Passages to show.")] = 3,
) -> None:
    """Print the best passages for a query."""
    from retriever_server.retrievers import open_retriever

    retriever, _ = open_retriever(folder)
    (hits,) = retriever.search([query], top_k=top_k)
    for rank, hit in enumerate(hits, start=1):
        typer.echo(f"{rank}. {hit.score:.4f} [{hit.passage.id}] {hit.passage.title}\n   {hit.passage.text}")


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
