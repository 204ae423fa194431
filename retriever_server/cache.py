"""Answers kept in memory: the samples of one question ask the same first query."""

from __future__ import annotations

from cachetools import LRUCache

from retriever_server.schema import ScoredPassage

# Entries are bounded in number, so their size must be too.
_MAX_TOP_K = 100


class ResultCache:
    """The answers of one index to the queries asked last, by query and k. For one thread.

    `max_entries` 0 keeps nothing. An answer to a k above 100 is not kept.
    """

    def __init__(self, max_entries: int) -> None:
        self._answers: LRUCache[tuple[str, int], tuple[ScoredPassage, ...]] = LRUCache(max_entries)

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, query: str, top_k: int) -> list[ScoredPassage] | None:
        """The answer, or None when it is not kept (any longer)."""
        hits = self._answers.get((query, top_k))
        return None if hits is None else list(hits)

    def keep(self, query: str, top_k: int, hits: list[ScoredPassage]) -> None:
        """Keep an answer, in place of the one that was not asked for the longest when all entries are taken."""
        if self._answers.maxsize and top_k <= _MAX_TOP_K:
            self._answers[query, top_k] = tuple(hits)
