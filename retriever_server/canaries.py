"""Queries with what an index found for them when it was built: another model, corpus or library finds otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from retriever_server.dense import DenseIndex
from retriever_server.encoders import Encoder, passage_text
from retriever_server.errors import EncoderError
from retriever_server.manifest import Canary, DensePart, differences
from retriever_server.retrievers import DenseRetriever, Retriever
from retriever_server.schema import Hits
from retriever_server.store import PassageStore

CANARY_TOP_K = 3
_NUM_CANARIES = 5
_CANARY_WORDS = 12


def make_canaries(store: PassageStore, search: Callable[[list[str]], list[Hits]]) -> tuple[Canary, ...]:
    """Queries made of passages spread evenly over the corpus, with the best three that they find."""
    rows = np.linspace(0, len(store) - 1, min(_NUM_CANARIES, len(store)), dtype=int).tolist()
    queries = [" ".join(passage_text(store[row]).split()[:_CANARY_WORDS]) for row in rows]
    return tuple(
        Canary(query, tuple(store[row].id for row, _ in hits))
        for query, hits in zip(queries, search(queries), strict=True)
    )


def count_found_again(retriever: Retriever, canaries: Sequence[Canary]) -> tuple[int, int]:
    """Of the passages that the canary queries found when the index was built: found again, and all."""
    expected = [set(canary.passage_ids) for canary in canaries]
    answers = retriever.search([canary.query for canary in canaries], top_k=max(map(len, expected), default=0))
    found = [{hit.passage.id for hit in hits} for hits in answers]
    return sum(len(ours & theirs) for ours, theirs in zip(found, expected, strict=True)), sum(map(len, expected))


def check_encoder(encoder: Encoder, part: DensePart, index: DenseIndex, store: PassageStore) -> DenseRetriever:
    """A retriever of the encoder and the index. Raises EncoderError with what differs when it was built by another."""
    if differing := differences(encoder.spec, part.encoder):
        raise EncoderError(f"the encoder is not the one of the index: {differing}; build it again")
    retriever = DenseRetriever(index, encoder, store)
    check_canaries(retriever, part)
    return retriever


def check_canaries(retriever: Retriever, part: DensePart) -> None:
    """Raise EncoderError when a retriever of a dense part does not find again what was found when it was built."""
    num_same, num_expected = count_found_again(retriever, part.canaries)
    # Near ties may swap on another processor; another model finds next to nothing again.
    if num_same < num_expected / 2:
        raise EncoderError(
            f"encoder {part.encoder.name!r} finds {num_same} of {num_expected} passages that it found when "
            "the index was built: its weights have changed, build the index again"
        )
