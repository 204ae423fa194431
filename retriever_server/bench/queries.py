"""Queries with their vectors, made beforehand: what a service searches for when encoding is not to be measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retriever_server.encoders import Encoder, EncoderSpec


@dataclass(frozen=True, slots=True)
class EncodedQueries:
    """Texts and their unit vectors (N, D), row by row."""

    texts: tuple[str, ...]
    vectors_ND: NDArray[np.float32]

    def save(self, path: Path) -> None:
        """Write both to an `.npz` file."""
        np.savez(path, texts=np.array(self.texts), vectors=self.vectors_ND)

    @classmethod
    def load(cls, path: Path) -> EncodedQueries:
        """What `save` wrote."""
        with np.load(path) as file:
            return cls(tuple(file["texts"].tolist()), file["vectors"])


def encode_all(texts: Sequence[str], encoder: Encoder) -> EncodedQueries:
    """The different ones of the texts with their vectors."""
    different = tuple(dict.fromkeys(texts))
    return EncodedQueries(different, encoder.encode_queries(different))


class StoredVectors:
    """An encoder that looks its vectors up; a text that was not stored is a KeyError."""

    def __init__(self, spec: EncoderSpec, queries: EncodedQueries) -> None:
        self.spec = spec
        self._vectors_ND = queries.vectors_ND
        self._row_of = {text: row for row, text in enumerate(queries.texts)}

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        return self._vectors_ND[[self._row_of[text] for text in texts]]

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        return self.encode_queries(texts)
