"""The service as a process: first the port, then the index, then the model; until then it answers 503."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from retriever_server.app import DEFAULT_TOP_K, attach_retriever, create_app
from retriever_server.encoders import Encoder, SentenceEncoder
from retriever_server.errors import ServingError
from retriever_server.opening import prepare_retriever
from retriever_server.retrievers import Retriever
from retriever_server.schema import RetrieverName

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8000
# Pooled clients sit idle between two turns of a rollout; a drain must end before their retries do.
_KEEP_ALIVE_SECONDS = 75
_DRAIN_SECONDS = 25
_BACKLOG = 2048


def serve(
    folder: Path,
    *,
    retriever: RetrieverName = "dense",
    rerank: str | None = None,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    top_k: int = DEFAULT_TOP_K,
    load_encoder: Callable[[str], Encoder] = SentenceEncoder,
    report: Callable[[str], None] = print,
) -> None:
    """Answer on `host:port` (0 picks a free one) until SIGTERM or SIGINT, then finish what is under way.

    Raises ServingError, IndexFolderError or EncoderError, in that order of checking, when it cannot start.
    """
    with _listen(host, port) as listener:
        load, manifest = prepare_retriever(folder, retriever, rerank=rerank, load_encoder=load_encoder)
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        report(f"{address} answers 503 while the {retriever} retriever loads")

        def on_ready() -> None:
            report(f"ready: {address}/retrieve ({manifest.num_passages:,} passages of {folder})")

        asyncio.run(_run(create_app(None, top_k=top_k), listener, load, on_ready))
    report("stopped")


async def _run(
    app: FastAPI, listener: socket.socket, load: Callable[[], Retriever], on_ready: Callable[[], None]
) -> None:
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    server = uvicorn.Server(config)
    _stop_on_signals(server)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    loading = asyncio.create_task(asyncio.to_thread(load))
    await asyncio.wait([serving, loading], return_when=asyncio.FIRST_COMPLETED)
    if loading.done() and loading.exception() is None:
        attach_retriever(app, loading.result())
        on_ready()
    elif loading.done():
        server.should_exit = True
    await serving
    if not loading.done():
        os._exit(0)  # Stopped while loading: nothing is under way, and a thread inside a download cannot be ended.
    loading.result()


def _stop_on_signals(server: uvicorn.Server) -> None:
    """uvicorn raises a signal again once it has stopped: with these handlers that is a clean end."""

    def stop(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ServingError(f"port {port} is not between 0 and 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServingError(
                f"port {port} on {host} is in use; give another --port, or stop the program that holds it"
            ) from error
        raise ServingError(
            f"cannot listen on {host}:{port} ({error.strerror or error}); give another --host"
        ) from error
