"""What a client may send."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """More queries are refused; longer queries are cut, and a higher k is lowered, to what is allowed."""

    max_queries: int = 8192
    max_query_characters: int = 8192
    max_top_k: int = 1000
