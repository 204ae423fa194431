"""A second look at what a retriever finds: a cross-encoder reads query and passage together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from retriever_server.encoders import location_of, passage_text
from retriever_server.errors import EncoderError
from retriever_server.retrievers import Retriever, one_at_a_time
from retriever_server.schema import ScoredPassage

RERANK_DEPTH = 20
_SCORE_DECIMALS = 5


class Reranker(Protocol):
    """Says how well passages answer queries; threads may call it side by side."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """A score for each (query, passage text); higher is better."""
        ...


class CrossEncoderReranker:
    """A sentence-transformers CrossEncoder with one output; seconds to load. Raises EncoderError.

    Code that comes with it runs only with `trust_remote_code`.
    """

    def __init__(self, name: str, *, batch_size: int = 32, trust_remote_code: bool = False) -> None:
        model = _load(name, location_of(name), trust_remote_code)
        self._predict, self._batch_size = one_at_a_time(model.predict), batch_size

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The model's raw output (a sigmoid would make equals of all good passages), free of the batch's noise."""
        import torch

        if not pairs:
            return []
        scores = self._predict(
            list(pairs), batch_size=self._batch_size, activation_fn=torch.nn.Identity(), show_progress_bar=False
        )
        return [round(float(score), _SCORE_DECIMALS) for score in scores]


class RerankingRetriever:
    """The best 20 of a retriever, whatever `top_k` is, in the order of a reranker; never more."""

    def __init__(self, retriever: Retriever, reranker: Reranker) -> None:
        self._retriever, self._reranker = retriever, reranker

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """See Retriever; the score is the reranker's, equal scores stay in the retriever's order."""
        found = self._retriever.search(queries, top_k=RERANK_DEPTH)
        pairs = [(query, passage_text(hit.passage)) for query, hits in zip(queries, found, strict=True) for hit in hits]
        scores = iter(self._reranker.score(pairs))
        rescored = [[ScoredPassage(hit.passage, next(scores)) for hit in hits] for hits in found]
        return [sorted(hits, key=lambda hit: -hit.score)[:top_k] for hits in rescored]


def _load(name: str, location: str, trust_remote_code: bool) -> Any:
    from sentence_transformers import CrossEncoder
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = CrossEncoder(location, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise EncoderError(
            f"reranker {name!r} cannot be loaded ({reason}); give a CrossEncoder's folder, or a hub id that this "
            "machine can download; one that brings code needs --trust-remote-code"
        ) from error
    if model.num_labels != 1:
        raise EncoderError(f"reranker {name!r} has {model.num_labels} outputs, one is needed; give another model")
    return model
