"""Several processes behind one port, over one memory-mapped index: a supervisor starts, replaces and stops them.

The kernel gives each connection to a worker that is idle. While none takes any, the supervisor itself answers 503.
All workers serve the same index: a reload is loaded by each of them before the first one serves it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from retriever_server.errors import ServingError
from retriever_server.manifest import Manifest
from retriever_server.settings import SHARED_COUNTS_VARIABLE, ServiceSettings

if TYPE_CHECKING:
    from retriever_server.opening import LoadEncoder


def serve_with_workers(
    folder: Path,
    settings: ServiceSettings,
    listener: socket.socket,
    num_workers: int,
    load_encoder: LoadEncoder | None,
    *,
    on_ready: Callable[[Manifest | None], None],
    report: Callable[[str], None],
) -> None:
    """Answer 503 at once and searches once a worker has loaded; return after SIGTERM or SIGINT, all answered.

    A worker that dies is replaced. SIGHUP reloads. Raises ServingError when the index cannot be served at the start.
    """
    if "prometheus_client" in sys.modules:
        raise ServingError("several workers cannot be counted together: prometheus_client was imported before serve")
    with tempfile.TemporaryDirectory(prefix="retriever-counts-") as counts:
        os.environ[SHARED_COUNTS_VARIABLE] = counts
        # These import prometheus_client, which looks for the variable when it is imported first.
        from retriever_server.process import IndexOpener, kept_signals
        from retriever_server.supervisor import Supervisor

        open_index = IndexOpener(folder, settings, load_encoder)
        try:
            with kept_signals():
                asyncio.run(Supervisor(listener, open_index, num_workers, on_ready=on_ready, report=report).run())
        finally:
            del os.environ[SHARED_COUNTS_VARIABLE]
