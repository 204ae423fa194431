"""Reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009): rankings in, one ranking out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum

from retriever_server.schema import Hits

RANK_OFFSET = 60


def reciprocal_rank_fusion(rankings: Iterable[Sequence[int]]) -> Hits:
    """Every row that a ranking names, once, with the sum of 1 / (60 + its rank from 1); equal sums by row.

    A ranking names a row at most once. Scores of the rankings play no part, so they need not compare.
    """
    shares: dict[int, list[float]] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, start=1):
            shares.setdefault(row, []).append(1 / (RANK_OFFSET + rank))
    return sorted(((row, fsum(parts)) for row, parts in shares.items()), key=lambda hit: (-hit[1], hit[0]))
