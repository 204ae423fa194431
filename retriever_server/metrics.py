"""What the service counts, for Prometheus; each app has a registry of its own."""

from __future__ import annotations

import os

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from retriever_server.settings import SHARED_COUNTS_VARIABLE

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SEARCH_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25)


class Metrics:
    """Counts by name. Paths outside the service's own count as `other`: their number has no bound.

    Several processes of one service share a folder of counts; each of them tells the sum.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "retriever_requests", "Requests by path and status.", ("path", "status"), registry=self._registry
        )
        self.queries = Counter("retriever_queries", "Queries of accepted requests.", registry=self._registry)
        self.truncated_queries = Counter(
            "retriever_truncated_queries", "Queries that were cut to the longest allowed.", registry=self._registry
        )
        self.cache_hits = Counter(
            "retriever_cache_hits", "Queries that were answered from the cache.", registry=self._registry
        )
        self._batch_sizes = Histogram(
            "retriever_batch_queries",
            "Different queries in one search.",
            buckets=_BATCH_SIZES,
            registry=self._registry,
        )
        self._search_seconds = Histogram(
            "retriever_search_seconds",
            "Encoding and search of one batch.",
            buckets=_SEARCH_SECONDS,
            registry=self._registry,
        )
        self._pending = Gauge(
            "retriever_pending_queries",
            "Queries that wait for a batch.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )

    def count_request(self, path: str, status: int) -> None:
        """One answer went out."""
        self._requests.labels(path, str(status)).inc()

    def count_pending(self, change: int) -> None:
        """So many more queries wait, or fewer."""
        self._pending.inc(change)

    def count_search(self, num_queries: int, seconds: float) -> None:
        """One batch was searched, well or not; may be called from any thread."""
        self._batch_sizes.observe(num_queries)
        self._search_seconds.observe(seconds)

    def text(self) -> bytes:
        """All of it in Prometheus's format."""
        if SHARED_COUNTS_VARIABLE not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)
