"""The search without a service: what a server over it can reach at most."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import faiss

from retriever_server.bench.queries import EncodedQueries
from retriever_server.dense import INDEX_FILE, open_dense
from retriever_server.encoders import Encoder
from retriever_server.index import open_passages

_LEAST_REPEATS = 3


@dataclass(frozen=True, slots=True)
class BareSearch:
    """FAISS alone, memory-mapped, with the service's threshold; `encoder_seconds` is of one query, None without one.

    `open_seconds` is of opening passages and vectors after `forget_files`; `batched_queries_per_second` is one
    `index.search` of all queries at once.
    """

    num_queries: int
    open_seconds: float
    batched_queries_per_second: float
    scan_seconds: float
    encoder_seconds: float | None

    @property
    def one_query_seconds(self) -> float:
        """Of one query alone, encoded where that is part of it, and searched."""
        return self.scan_seconds + (self.encoder_seconds or 0.0)


def measure_bare(
    folder: Path, queries: EncodedQueries, *, top_k: int, seconds: float, encoder: Encoder | None = None
) -> BareSearch:
    """Each figure from repeats over about so many seconds, three at least, after one that is not counted."""
    open_seconds = _open_seconds(folder)
    index: Any = faiss.read_index(str(folder / INDEX_FILE), faiss.IO_FLAG_MMAP_IFC)
    vectors_ND, rows, texts = queries.vectors_ND, cycle(range(len(queries.texts))), cycle(queries.texts)
    all_seconds = _median_seconds(lambda: index.search(vectors_ND, top_k), seconds)
    scan_seconds = _median_seconds(lambda: index.search(vectors_ND[[next(rows)]], top_k), seconds)
    encoder_seconds = None
    if encoder is not None:
        encode_queries = encoder.encode_queries
        encoder_seconds = _median_seconds(lambda: encode_queries([next(texts)]), seconds)
    return BareSearch(
        num_queries=len(vectors_ND),
        open_seconds=open_seconds,
        batched_queries_per_second=len(vectors_ND) / all_seconds,
        scan_seconds=scan_seconds,
        encoder_seconds=encoder_seconds,
    )


def forget_files(folder: Path) -> None:
    """Ask the system to drop what it holds in memory of the files of a folder; it keeps what others have mapped."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _open_seconds(folder: Path) -> float:
    forget_files(folder)
    start = time.perf_counter()
    _, manifest = open_passages(folder)
    open_dense(folder, manifest)
    return time.perf_counter() - start


def _median_seconds(work: Callable[[], object], seconds: float) -> float:
    work()
    taken: list[float] = []
    while sum(taken) < seconds or len(taken) < _LEAST_REPEATS:
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return median(taken)
