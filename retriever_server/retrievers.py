"""Queries in, scored passages out: the one seam between the service and the ways to search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Protocol

from retriever_server.encoders import Encoder, EncoderSpec, SentenceEncoder
from retriever_server.errors import EncoderError
from retriever_server.index import DenseIndex, open_index
from retriever_server.manifest import Manifest
from retriever_server.schema import ScoredPassage


class Retriever(Protocol):
    """One way to search; called by one thread at a time."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """Per query at most `top_k` passages, best first; perhaps fewer, perhaps none."""
        ...


class DenseRetriever:
    """An encoder and the index that was built with it."""

    def __init__(self, index: DenseIndex, encoder: Encoder) -> None:
        self._index, self._encoder = index, encoder

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """Per query at most `top_k` passages by inner product of unit vectors, equal scores by row."""
        found = self._index.search(self._encoder.encode_queries(queries), top_k)
        return [[ScoredPassage(self._index.passage(row), score) for row, score in hits] for hits in found]


def open_retriever(
    folder: Path, *, load_encoder: Callable[[str], Encoder] = SentenceEncoder
) -> tuple[DenseRetriever, Manifest]:
    """A retriever over an index folder and its manifest; seconds, most of them for the encoder.

    Raises IndexFolderError, or EncoderError when the encoder is not the one that the index was built with.
    """
    index, manifest = open_index(folder)
    return attach_encoder(index, manifest, load_encoder(manifest.encoder.name)), manifest


def attach_encoder(index: DenseIndex, manifest: Manifest, encoder: Encoder) -> DenseRetriever:
    """The retriever, after the index's canary queries found again what they found when it was built."""
    _check_spec(encoder.spec, manifest.encoder)
    retriever = DenseRetriever(index, encoder)
    expected = [set(canary.passage_ids) for canary in manifest.canaries]
    answers = retriever.search([canary.query for canary in manifest.canaries], top_k=max(map(len, expected)))
    found = [{hit.passage.id for hit in hits} for hits in answers]
    num_same = sum(len(ours & theirs) for ours, theirs in zip(found, expected, strict=True))
    num_expected = sum(map(len, expected))
    # Near ties may swap on another processor; another model finds next to nothing again.
    if num_same < num_expected / 2:
        raise EncoderError(
            f"encoder {encoder.spec.name!r} finds {num_same} of {num_expected} passages that it found when "
            "the index was built: its weights have changed, build the index again"
        )
    return retriever


def _check_spec(found: EncoderSpec, expected: EncoderSpec) -> None:
    differences = [
        f"{field.name} was {getattr(expected, field.name)!r} and is {getattr(found, field.name)!r}"
        for field in fields(EncoderSpec)
        if getattr(expected, field.name) != getattr(found, field.name)
    ]
    if differences:
        raise EncoderError(f"the encoder is not the one of the index: {', '.join(differences)}; build it again")
