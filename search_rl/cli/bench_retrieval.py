"""`search-rl bench retrieval`, `soak`, `synthetic` and `build`: how fast the service is, and whether it stays right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from retriever_server.bench.load import Load

_DEFAULT_LOADS = "1x1,4x1,16x1,64x1,256x1,1x64,4x64,1x2560"
_MOST_CLIENTS, _MOST_QUERIES = 1024, 4096
_NUM_QUERIES = 2560

Index = Annotated[Path | None, typer.Option(help="Index folder; without it a synthetic one is made, and goes again.")]
Passages = Annotated[int, typer.Option(min=1, help="Passages of the synthetic index.")]
Dimension = Annotated[
    int | None, typer.Option(min=1, help="Dimension of the synthetic index; 768, with --encode the encoder's.")
]
Kind = Annotated[str, typer.Option(help="Kind of the synthetic index, as in `index build`.")]
Encode = Annotated[
    bool,
    typer.Option(
        "--encode", help="The servers encode the queries, with the index's encoder; else that is done before."
    ),
]
Questions = Annotated[Path | None, typer.Option(help="Question file whose texts are asked; else synthetic ones.")]


def retrieval(
    *,
    index: Index = None,
    passages: Passages = 200_000,
    dimension: Dimension = None,
    kind: Kind = "flat",
    encode: Encode = False,
    questions: Questions = None,
    load: Annotated[str, typer.Option(help="Loads, CLIENTSxQUERIES with commas between.")] = _DEFAULT_LOADS,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each measurement.")] = 5.0,
    top_k: Annotated[int, typer.Option(min=1, max=1000, help="Passages a query.")] = 3,
    overlap: Annotated[bool, typer.Option("--overlap", help="Serve with --overlap.")] = False,
    reference: Annotated[bool, typer.Option(help="Measure a plain server in the reference's style, too.")] = True,
    out: Annotated[Path, typer.Option(help="Folder for retrieval.json and retrieval.png.")] = Path("runs/bench"),
) -> None:
    """Queries per second, latency, CPU and memory of the service under load, beside a plain server and bare FAISS."""
    from retriever_server.bench.chart import draw_throughput
    from retriever_server.bench.report import HEADINGS, summary_lines, throughput_json, throughput_rows
    from retriever_server.bench.subject import Shape, opened_subject
    from retriever_server.bench.throughput import measure_throughput

    loads, texts = _loads(load), _texts(questions)
    _check_out(out)
    with opened_subject(index, Shape(passages, dimension, kind), is_encoding=encode) as subject:
        measured = measure_throughput(
            subject,
            texts,
            loads,
            with_reference=reference,
            top_k=top_k,
            seconds=seconds,
            report=_tell,
            overlap=overlap,
        )
    _write_json(out / "retrieval.json", throughput_json(measured))
    draw_throughput(measured, out / "retrieval.png")
    _print_table(HEADINGS, throughput_rows(measured))
    typer.echo("\n".join(summary_lines(measured)))
    typer.echo(f"written: {out}/retrieval.json, {out}/retrieval.png")


def soak(
    *,
    index: Index = None,
    passages: Passages = 200_000,
    dimension: Dimension = None,
    kind: Kind = "flat",
    minutes: Annotated[float, typer.Option(min=0.01, help="How long.")] = 30.0,
    clients: Annotated[int, typer.Option(min=1, max=_MOST_CLIENTS, help="Clients that ask at once.")] = 256,
    out: Annotated[Path, typer.Option(help="Folder for soak.json.")] = Path("runs/bench"),
) -> None:
    """Hold every answer of the service, to many clients for a long time, against brute force; exit 1 on a fault."""
    from retriever_server.bench.soak import measure_soak
    from retriever_server.bench.soak_report import soak_json, soak_lines
    from retriever_server.bench.subject import Shape, opened_subject

    _check_out(out)
    with opened_subject(index, Shape(passages, dimension, kind), is_encoding=False) as subject:
        soaked = measure_soak(subject, _texts(None), seconds=60 * minutes, num_clients=clients, report=_tell)
    _write_json(out / "soak.json", soak_json(soaked))
    typer.echo("\n".join(soak_lines(soaked)))
    if soaked.faults:
        raise typer.Exit(1)


def synthetic(
    *,
    out: Annotated[Path, typer.Option(help="Index folder to write; an index that is there is replaced.")],
    passages: Passages = 200_000,
    dimension: Dimension = None,
    kind: Kind = "flat",
    encode: Encode = False,
) -> None:
    """Write a synthetic index folder, to be measured more than once."""
    from retriever_server.bench.subject import Shape, make_subject

    made = make_subject(out, Shape(passages, dimension, kind), is_encoding=encode)
    typer.echo(f"{out}: {made.manifest.num_passages:,} synthetic passages")


def build(
    *,
    corpus: Annotated[
        Path | None, typer.Option(help="Corpus, as `index build` takes it, in place of --passages.")
    ] = None,
    passages: Passages = 200_000,
    dimension: Annotated[int, typer.Option(min=1, help="Dimension of the synthetic vectors; bm25 has none.")] = 768,
    kind: Kind = "flat",
    retriever: Annotated[Literal["dense", "bm25", "hybrid"], typer.Option(help="What the index is for.")] = "dense",
    kills: Annotated[int, typer.Option(min=0, help="Kill another build so often, and resume it.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for build.json; the indexes lie there meanwhile.")] = Path(
        "runs/bench"
    ),
) -> None:
    """Build an index of synthetic vectors: speed, memory, and whether one that was killed and resumed is the same.

    Exit 1 when it is not, or when a build took more than 2 GiB beside the index itself.
    """
    import tempfile

    from retriever_server.bench.building import build_json, build_lines, measure_build
    from retriever_server.bench.subject import Shape

    _check_out(out)
    with tempfile.TemporaryDirectory(dir=out, prefix=".build-") as work:
        measured = measure_build(
            Path(work),
            Shape(passages, dimension, kind),
            retriever=retriever,
            corpus=corpus,
            kills=kills,
            report=_tell,
        )
    _write_json(out / "build.json", build_json(measured))
    typer.echo("\n".join(build_lines(measured)))
    if measured.faults:
        raise typer.Exit(1)


def _tell(line: str) -> None:
    typer.echo(line, err=True)


def _check_out(out: Path) -> None:
    """Before minutes of measuring."""
    from retriever_server.errors import BenchError

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"--out {out}: cannot be written ({error.strerror}); give another folder") from error


def _write_json(path: Path, content: object) -> None:
    import orjson

    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from search_rl.evaluation.tables import new_table
    from search_rl.viewer.progress import wide_console

    table = new_table(*headings)
    for row in rows:
        table.add_row(*row)
    wide_console().print(table)


def _loads(text: str) -> list[Load]:
    from retriever_server.bench.load import Load

    loads = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,9})x(\d{1,9})", part.strip())
        clients, queries = (int(found[1]), int(found[2])) if found is not None else (0, 0)
        if not (0 < clients <= _MOST_CLIENTS and 0 < queries <= _MOST_QUERIES):
            raise typer.BadParameter(
                f"--load {part!r}: must be clients x queries, 1 to {_MOST_CLIENTS} and 1 to {_MOST_QUERIES}, as in 64x1"
            )
        loads.append(Load(clients, queries))
    return loads


def _texts(questions: Path | None) -> list[str]:
    from retriever_server.bench.synthetic import synthetic_queries
    from search_rl.datasets.questions import read_questions

    if questions is None:
        return synthetic_queries(_NUM_QUERIES)
    return [question.text for question in read_questions(questions).questions]
