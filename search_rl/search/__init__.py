"""Asking the retriever: the client of `POST /retrieve`, which services it asks, and what their replies say."""

from search_rl.search.client import SearchClient, SearchCounts, Searcher

__all__ = ["SearchClient", "SearchCounts", "Searcher"]
