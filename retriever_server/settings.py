"""How an index is served: what the command line says, and every process of a service is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from retriever_server.limits import Limits
from retriever_server.schema import RetrieverName

DEFAULT_TOP_K = 3
DEFAULT_CACHE_ENTRIES = 10_000
# The folder where processes of one service count together: prometheus_client looks for it when it is imported first.
SHARED_COUNTS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


@dataclass(frozen=True, slots=True)
class Batching:
    """Bounds of the queue of one process; see MicroBatcher.

    With `overlap` a batch is encoded while the one before is searched, each step on one thread at a time. The deadline
    lies below the 30 s at which clients of verl and SkyRL give up: an answer after that is for nobody.
    """

    max_batch_queries: int = 256
    max_pending_queries: int = 8192
    share_queries: int = 32
    deadline_seconds: float = 25.0
    overlap: bool = False


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Which retriever, within which bounds.

    `rerank` names a CrossEncoder. `top_k` is for requests that name none. `cache_entries` answers are kept a process;
    0 turns that off. Clients must send the `token`, if there is one. `log_requests` writes a line of JSON a request to
    stderr. Code that comes with a model runs only with `trust_remote_code`.
    """

    retriever: RetrieverName = "dense"
    rerank: str | None = None
    top_k: int = DEFAULT_TOP_K
    limits: Limits = field(default_factory=Limits)
    batching: Batching = field(default_factory=Batching)
    cache_entries: int = DEFAULT_CACHE_ENTRIES
    token: str | None = None
    log_requests: bool = False
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Ray Serve deployments: parts of the dense index by rows, each and every model `num_replicas` times.

    A replica has `cpus_per_replica` cores and as many threads. `address` is of a running cluster, `auto` for this
    machine's; None starts Ray here, and stops it afterwards.
    """

    num_shards: int = 1
    num_replicas: int = 1
    cpus_per_replica: int = 1
    address: str | None = None
