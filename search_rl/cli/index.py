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
    from retriever_server.corpus import CorpusReport
    from retriever_server.manifest import Manifest

app = typer.Typer(help="Build, add to, import, look at and query a corpus index.", no_args_is_help=True)

_PLAIN_STEP_PERCENT = 10


_CORPUS_HELP = "Corpus: .jsonl (.gz, .zst) or .parquet rows, or .txt, .md, .html, .pdf documents; a file or a folder."
_CORPUS = Annotated[Path, typer.Option(help=_CORPUS_HELP)]
_CHUNK_WORDS = Annotated[
    int | None, typer.Option(min=1, help="Most words of a passage cut from a document (100); ends at a sentence.")
]
_SKIP_BAD = Annotated[bool, typer.Option("--skip-bad", help="Count and list rows that cannot be used, and go on.")]
_BATCH_SIZE = Annotated[int, typer.Option(min=1, help="Passages the encoder takes at once.")]
_TRUST = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the encoder; never otherwise.")
]


@app.command()
def build(
    *,
    corpus: _CORPUS,
    out: Annotated[Path, typer.Option(help="Index folder to write; an index that is there is replaced.")],
    encoder: Annotated[str, typer.Option(help="Hub id, local folder, or the embedded default.")] = "all-MiniLM-L6-v2",
    batch_size: _BATCH_SIZE = 32,
    retriever: Annotated[
        Literal["dense", "bm25", "hybrid"],
        typer.Option(help="What the folder is for: dense vectors, BM25 weights, or hybrid: both."),
    ] = "dense",
    kind: Annotated[
        str,
        typer.Option(
            help="Dense index: flat (exact), fp16, sq8, hnsw, ivfpq, a FAISS factory string, or auto, by size."
        ),
    ] = "flat",
    chunk_words: _CHUNK_WORDS = None,
    skip_bad: _SKIP_BAD = False,
    trust_remote_code: _TRUST = False,
) -> None:
    """Turn a corpus into an index folder; after a kill the same command goes on where it was."""
    from retriever_server.encoders import SentenceEncoder
    from retriever_server.index import build_index

    with _reading(skip_bad) as report, _progress("indexing passages") as progress:
        manifest = build_index(
            corpus,
            out,
            SentenceEncoder(encoder, batch_size=batch_size, trust_remote_code=trust_remote_code)
            if retriever != "bm25"
            else None,
            kind=kind,
            with_bm25=retriever != "dense",
            chunk_words=chunk_words,
            report=report,
            progress=progress,
            notice=_notice,
        )
    _tell(out, manifest)


@app.command()
def add(
    *,
    index: Annotated[Path, typer.Option(help="Index folder to add to.")],
    corpus: _CORPUS,
    batch_size: _BATCH_SIZE = 32,
    chunk_words: _CHUNK_WORDS = None,
    skip_bad: _SKIP_BAD = False,
    trust_remote_code: _TRUST = False,
) -> None:
    """Put the passages of a corpus behind those of an index; a service takes them up when it reloads."""
    from functools import partial

    from retriever_server.adding import add_to_index
    from retriever_server.encoders import SentenceEncoder

    load_encoder = partial(SentenceEncoder, batch_size=batch_size, trust_remote_code=trust_remote_code)
    with _reading(skip_bad) as report, _progress("indexing passages") as progress:
        manifest = add_to_index(
            index, corpus, load_encoder, chunk_words=chunk_words, report=report, progress=progress, notice=_notice
        )
    _tell(index, manifest)


@app.command("import")
def import_(
    vectors: Annotated[list[Path], typer.Argument(help="FAISS index file, or its parts in order: part_aa part_ab.")],
    *,
    corpus: Annotated[Path, typer.Option(help="The corpus of the vectors, in their order.")],
    encoder: Annotated[str, typer.Option(help="The encoder that made the vectors: hub id or local folder.")],
    out: Annotated[Path, typer.Option(help="Index folder to write; an index that is there is replaced.")],
    with_bm25: Annotated[bool, typer.Option("--with-bm25", help="Build a BM25 part beside the vectors.")] = False,
    trust_remote_code: _TRUST = False,
) -> None:
    """Turn a published FAISS index and its corpus (wiki-18) into an index folder, without encoding it."""
    from retriever_server.encoders import SentenceEncoder
    from retriever_server.importing import import_index

    with _progress("indexing passages") as progress:
        manifest = import_index(
            vectors,
            corpus,
            out,
            SentenceEncoder(encoder, trust_remote_code=trust_remote_code),
            with_bm25=with_bm25,
            progress=progress,
            notice=_notice,
        )
    _tell(out, manifest)


def _notice(line: str) -> None:
    typer.echo(line, err=True)


@contextmanager
def _reading(skip_bad: bool) -> Iterator[CorpusReport]:
    """A report of which the skipped rows are told however the reading ends, the rest when it ends well."""
    from retriever_server.corpus import CorpusReport

    report = CorpusReport(skip_bad=skip_bad)
    try:
        yield report
    finally:
        for fault in report.faults:
            typer.echo(f"skipped: {fault}", err=True)
    typer.echo(report.summary, err=True)


def _tell(folder: Path, manifest: Manifest) -> None:
    bm25 = ", BM25" if manifest.bm25 else ""
    typer.echo(f"{folder}: {manifest.num_passages:,} passages{_dense_text(manifest)}{bm25}")


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
    trust_remote_code: _TRUST = False,
) -> None:
    """Print the best passages for a query."""
    from functools import partial

    from retriever_server.encoders import SentenceEncoder
    from retriever_server.opening import open_retriever

    load_encoder = partial(SentenceEncoder, trust_remote_code=trust_remote_code)
    opened, _ = open_retriever(folder, retriever, load_encoder=load_encoder)
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
    trust_remote_code: _TRUST = False,
) -> None:
    """Measure what an index finds: recall against exact search, answers and evidence among the best k, queries/s."""
    import json
    from functools import partial

    from retriever_server.encoders import SentenceEncoder
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
            load_encoder=partial(SentenceEncoder, trust_remote_code=trust_remote_code),
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
