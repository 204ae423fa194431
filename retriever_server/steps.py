"""The steps of a search that replicas on other machines do, each with what it needs opened once.

A part is a function that opens the step and a question that tries it; it is small, and goes to the replica's machine,
where the index folder lies at the same path.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from retriever_server.encoders import SentenceEncoder
from retriever_server.errors import EncoderError, ServingError
from retriever_server.index import open_passages
from retriever_server.manifest import DensePart, Manifest, differences, read_manifest
from retriever_server.opening import LoadEncoder, missing_part, open_retriever
from retriever_server.rerank import CrossEncoderReranker
from retriever_server.retrievers import BM25Retriever
from retriever_server.row_shards import Shard, row_ranges
from retriever_server.settings import ClusterPlan, ServiceSettings
from retriever_server.store import PassageStore

Step = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Part:
    """`open_step()` makes the step, which must be able to answer `probe`, its arguments."""

    name: str
    open_step: Callable[[], Step]
    probe: tuple[Any, ...]


class Replica:
    """Does the step of one part, one call at a time; fit to be a Ray Serve deployment."""

    def __init__(self, part: Part) -> None:
        self._part, self._step, self._lock = part, part.open_step(), threading.Lock()
        self.check_health()

    def __call__(self, *arguments: Any) -> Any:
        """What the step answers."""
        with self._lock:
            return self._step(*arguments)

    def check_health(self) -> None:
        """Answer the probe; what that raises has the replica replaced."""
        self(*self._part.probe)


def plan_parts(
    folder: Path, settings: ServiceSettings, plan: ClusterPlan, load_encoder: LoadEncoder | None
) -> tuple[list[Part], PassageStore, Manifest]:
    """What is to be deployed for a folder. Raises IndexFolderError and ServingError for what cannot be."""
    if settings.retriever in ("random", "empty"):
        raise ServingError(f"--ray with the control `{settings.retriever}`, which searches nothing: leave --ray out")
    store, manifest = open_passages(folder)
    trust, parts = settings.trust_remote_code, list[Part]()
    if settings.retriever in ("dense", "hybrid"):
        if manifest.dense is None:
            raise missing_part(folder, manifest, "dense")
        ranges = row_ranges(manifest.num_passages, plan.num_shards)
        Shard(folder, manifest, ranges[-1])
        parts.append(_encoder_part(manifest.dense, load_encoder, trust_remote_code=trust))
        parts += [_shard_part(folder, manifest.dense, number, rows) for number, rows in enumerate(ranges)]
    elif plan.num_shards > 1:
        raise ServingError(f"--shards {plan.num_shards} with {settings.retriever}: only a dense index is cut in shards")
    if settings.retriever in ("bm25", "hybrid"):
        if manifest.bm25 is None:
            raise missing_part(folder, manifest, "bm25")
        parts.append(_bm25_part(folder))
    if settings.rerank is not None:
        parts.append(_reranker_part(settings.rerank, trust_remote_code=trust))
    return parts, store, manifest


def _encoder_part(dense: DensePart, load_encoder: LoadEncoder | None, *, trust_remote_code: bool) -> Part:
    """Query texts to vectors (N, D)."""
    load = load_encoder or partial(SentenceEncoder, trust_remote_code=trust_remote_code)
    return Part("encoder", partial(_open_encoder, dense, load), (["a first query"],))


def _shard_part(folder: Path, dense: DensePart, number: int, rows: range) -> Part:
    """Vectors and k to hits among some rows."""
    probe = np.zeros((1, dense.encoder.dimension), dtype=np.float32)
    return Part(f"shard-{number}", partial(_open_shard, folder, rows), (probe, 1))


def _bm25_part(folder: Path) -> Part:
    """Query texts and k to hits."""
    return Part("bm25", partial(_open_bm25, folder), (["a first query"], 1))


def _reranker_part(name: str, *, trust_remote_code: bool) -> Part:
    """Pairs of query and passage text to scores."""
    return Part("reranker", partial(_open_reranker, name, trust_remote_code), ([("a first query", "a text")],))


def _open_encoder(dense: DensePart, load_encoder: LoadEncoder) -> Step:
    encoder = load_encoder(dense.encoder.name)
    if differing := differences(encoder.spec, dense.encoder):
        raise EncoderError(f"the encoder is not the one of the index: {differing}; build it again")
    return encoder.encode_queries


def _open_shard(folder: Path, rows: range) -> Step:
    shard = Shard(folder, read_manifest(folder), rows)
    shard.read_ahead()
    return shard.search


def _open_bm25(folder: Path) -> Step:
    retriever, _ = open_retriever(folder, "bm25")
    assert isinstance(retriever, BM25Retriever)
    return retriever.search_rows


def _open_reranker(name: str, trust_remote_code: bool) -> Step:
    return CrossEncoderReranker(name, trust_remote_code=trust_remote_code).score
