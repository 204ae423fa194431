"""What a right answer is: computed beforehand by brute force, compared hit by hit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever_server.bench.queries import EncodedQueries
from retriever_server.errors import BenchError
from retriever_server.exact import exact_search, scanned_vectors
from retriever_server.schema import Passage
from retriever_server.store import PassageStore

MOST_HITS = 50
# A tie at the last place that is asked for may go either way: so many more are known.
_MARGIN = 32
# The service computes in float32 and rounds to six decimals.
_TOLERANCE = 5e-6


def write_oracle(folder: Path, queries: EncodedQueries, path: Path) -> None:
    """The best rows of each query in an `.npz` file. Raises BenchError for an index that does not scan all vectors."""
    chunks = scanned_vectors(folder)
    if chunks is None:
        raise BenchError(f"{folder}: this kind of index is approximate; flat, fp16 and sq8 have one right answer")
    best = exact_search(chunks, queries.vectors_ND, MOST_HITS + _MARGIN)
    np.savez(path, texts=np.array(queries.texts), rows=best.rows_QK, scores=best.scores_QK)


@dataclass(frozen=True, slots=True)
class Oracle:
    """The best rows of each query and their scores (Q, K), and the passages."""

    texts: tuple[str, ...]
    rows_QK: NDArray[np.int64]
    scores_QK: NDArray[np.float64]
    store: PassageStore

    @classmethod
    def load(cls, path: Path, folder: Path) -> Oracle:
        """What `write_oracle` wrote for the folder."""
        with np.load(path) as file:
            return cls(tuple(file["texts"].tolist()), file["rows"], file["scores"], PassageStore(folder))

    def fault(self, query: int, top_k: int, hits: Sequence[Any], *, with_scores: bool) -> str | None:
        """What is wrong with the JSON hits for a query, given by its row; None when they are right.

        Hits whose true scores are within the tolerance of each other may stand in either order.
        """
        num_expected = min(top_k, len(self.store))
        if len(hits) != num_expected:
            return f"{len(hits)} hits, not {num_expected}"
        documents = [hit["document"] for hit in hits] if with_scores else list(hits)
        place_of = {int(row): place for place, row in enumerate(self.rows_QK[query])}
        passages = {self.store[row].id: (row, place) for row, place in place_of.items() if place < top_k + _MARGIN}
        if len({document["id"] for document in documents}) != len(documents):
            return "a passage twice"
        for rank, document in enumerate(documents):
            if document["id"] not in passages:
                return f"hit {rank + 1}, passage {document['id']}, is not among the best"
            row, place = passages[document["id"]]
            score = float(self.scores_QK[query, place])
            if abs(score - self.scores_QK[query, rank]) > _TOLERANCE:
                return f"hit {rank + 1}, passage {document['id']}, is the best but {place}"
            if with_scores and abs(score - hits[rank]["score"]) > _TOLERANCE:
                return f"hit {rank + 1} has the score {hits[rank]['score']}, not {score}"
            if document != _document(self.store[row]):
                return f"hit {rank + 1} is not passage {document['id']} as it is stored"
        return None


def _document(passage: Passage) -> dict[str, str]:
    """Written again on purpose: the service's own function would agree with itself."""
    contents = f'"{passage.title}"\n{passage.text}'
    return {
        "id": passage.id,
        "title": passage.title,
        "text": passage.text,
        "contents": contents,
        "url": passage.url,
    }
