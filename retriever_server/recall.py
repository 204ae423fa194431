"""How much of the exact answer an index finds, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from retriever_server.encoders import Encoder, SentenceEncoder
from retriever_server.errors import IndexFolderError
from retriever_server.exact import encoded_vectors, exact_search, scanned_vectors
from retriever_server.index import open_passages
from retriever_server.manifest import differences
from retriever_server.opening import LoadEncoder, open_retriever
from retriever_server.retrievers import Retriever
from retriever_server.schema import RetrieverName, ScoredPassage

_BATCH_QUERIES = 256

Answers = list[list[ScoredPassage]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class IndexAnswers:
    """Per query its hits, the seconds that all took together, and by k each query's recall where that was wanted."""

    answers: Answers
    seconds: float
    recalls: Mapping[int, Sequence[float]] | None

    @property
    def queries_per_second(self) -> float:
        """Encoded and searched, 256 at a time, without a service around."""
        return len(self.answers) / self.seconds


def answer_all(
    folder: Path,
    name: RetrieverName,
    queries: Sequence[str],
    top_ks: Sequence[int],
    *,
    with_recall: bool,
    exact_folder: Path | None = None,
    load_encoder: LoadEncoder = SentenceEncoder,
    progress: Progress | None = None,
) -> IndexAnswers:
    """What a folder's retriever finds for each query, to the largest k.

    Recall is against exact search by the dense part's encoder, over the vectors of `exact_folder`, a flat index of the
    same passages; without it over those of the folder itself when it is flat, else over all passages encoded anew.
    Raises IndexFolderError and EncoderError.
    """
    load_once = cache(load_encoder)
    if with_recall:
        _check_exact(folder, exact_folder)
    retriever, manifest = open_retriever(folder, name, load_encoder=load_once)
    answers, seconds = _timed(retriever, queries, max(top_ks))
    recalls = None
    if with_recall and manifest.dense is not None:
        encoder = load_once(manifest.dense.encoder.name)
        exact = _exact_ids(folder, encoder, queries, max(top_ks), exact_folder=exact_folder, progress=progress)
        recalls = {k: [_recall(hits, ids, k) for hits, ids in zip(answers, exact, strict=True)] for k in top_ks}
    return IndexAnswers(answers, seconds, recalls)


def _timed(retriever: Retriever, queries: Sequence[str], top_k: int) -> tuple[Answers, float]:
    """After a first search outside the count, in which models and maps warm up."""
    retriever.search(queries[:1], top_k=top_k)
    start = time.perf_counter()
    answers = [hits for batch in _batched(queries, _BATCH_QUERIES) for hits in retriever.search(batch, top_k=top_k)]
    return answers, time.perf_counter() - start


def _batched(queries: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """The queries in order, so many at a time."""
    return (queries[first : first + size] for first in range(0, len(queries), size))


def _check_exact(folder: Path, exact_folder: Path | None) -> None:
    """Before anything is loaded."""
    _, manifest = open_passages(folder)
    if manifest.dense is None:
        raise IndexFolderError(f"{folder}: has no dense part, so there is no exact search; leave recall out")
    if exact_folder is None:
        return
    _, exact_manifest = open_passages(exact_folder)
    if exact_manifest.dense is None or exact_manifest.dense.kind != "flat":
        raise IndexFolderError(f"{exact_folder}: is not a flat index, which alone is exact")
    if exact_manifest.corpus_sha256 != manifest.corpus_sha256:
        raise IndexFolderError(f"{exact_folder}: is of another corpus than {folder}")
    if differing := differences(exact_manifest.dense.encoder, manifest.dense.encoder):
        raise IndexFolderError(f"{exact_folder}: is of another encoder: {differing}")


def _exact_ids(
    folder: Path,
    encoder: Encoder,
    queries: Sequence[str],
    top_k: int,
    *,
    exact_folder: Path | None,
    progress: Progress | None,
) -> list[list[str]]:
    """Ids of each query's best passages, best first."""
    store, manifest = open_passages(exact_folder or folder)
    is_flat = manifest.dense is not None and manifest.dense.kind == "flat"
    vectors = scanned_vectors(exact_folder or folder) if is_flat else None
    # In the batches of the search: in others the same query is rounded otherwise, which is no fault of an index.
    queries_ND = np.concatenate([encoder.encode_queries(batch) for batch in _batched(queries, _BATCH_QUERIES)])
    best = exact_search(vectors or encoded_vectors(store, encoder, progress), queries_ND, top_k)
    return [[store[row].id for row in rows] for rows in best.rows_QK.tolist()]


def _recall(hits: Sequence[ScoredPassage], exact_ids: Sequence[str], top_k: int) -> float:
    """The share of the exact `top_k` that is among the first `top_k` found."""
    expected = set(exact_ids[:top_k])
    return len(expected & {hit.passage.id for hit in hits[:top_k]}) / len(expected)
