"""The service from its command: first the port, then the index, then the model; until then it answers 503.

What is imported here is light: the port must answer within two seconds of the start.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retriever_server.errors import ServingError
from retriever_server.manifest import Manifest, read_manifest
from retriever_server.settings import ClusterPlan, ServiceSettings

if TYPE_CHECKING:
    from retriever_server.opening import LoadEncoder

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8000
_BACKLOG = 2048


def serve(
    folder: Path,
    settings: ServiceSettings | None = None,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    workers: int = 1,
    cluster: ClusterPlan | None = None,
    load_encoder: LoadEncoder | None = None,
    report: Callable[[str], None] = print,
) -> None:
    """Answer on `host:port` (0 picks a free one) until SIGTERM or SIGINT, then finish what is under way.

    SIGHUP and `POST /admin/reload` load the folder again, while the old index serves on. Several `workers` are
    processes that share the port and the memory-mapped index; a `cluster` is Ray's.

    Raises ServingError, IndexFolderError or EncoderError, in that order of checking, when it cannot start.
    """
    settings = settings or ServiceSettings()
    if cluster is not None and workers > 1:
        raise ServingError(f"--workers {workers} with --ray: Ray's replicas take their place; give --replicas")
    with _listen(host, port) as listener:
        read_manifest(folder)
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        report(f"{address} answers 503 while the {settings.retriever} retriever loads")

        def on_ready(manifest: Manifest | None) -> None:
            num_passages = manifest.num_passages if manifest is not None else 0
            report(f"ready: {address}/retrieve ({num_passages:,} passages of {folder})")

        if cluster is not None:
            _serve_on_cluster(folder, settings, cluster, listener, load_encoder, on_ready=on_ready, report=report)
        elif workers > 1:
            from retriever_server.workers import serve_with_workers

            _share_cores(workers)
            serve_with_workers(folder, settings, listener, workers, load_encoder, on_ready=on_ready, report=report)
        else:
            from retriever_server.process import IndexOpener, make_app, serve_alone

            open_index = IndexOpener(folder, settings, load_encoder)
            serve_alone(make_app(settings, open_index), listener, open_index, on_ready=on_ready, report=report)
    report("stopped")


def _serve_on_cluster(*arguments: Any, **options: Any) -> None:
    try:
        from retriever_server.cluster import serve_on_cluster
    except ModuleNotFoundError as error:
        raise ServingError(f"--ray needs a package that is missing ({error.name}): pip install 'ray[serve]'") from error
    serve_on_cluster(*arguments, **options)


def _share_cores(num_workers: int) -> None:
    """Each worker computes with its part of the cores, unless the user has said how many threads it may have."""
    num_cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cores // num_workers)))


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ServingError(f"port {port} is not between 0 and 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServingError(
                f"port {port} on {host} is in use; give another --port, or stop the program that holds it"
            ) from error
        raise ServingError(
            f"cannot listen on {host}:{port} ({error.strerror or error}); give another --host"
        ) from error
    # Connections inherit it; asyncio sets it on none of this listener's. Without it a body waits for the client to
    # acknowledge the head of the answer, which clients put off by 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
