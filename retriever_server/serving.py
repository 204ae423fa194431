"""The service as a process: first the port, then the index, then the model; until then it answers 503."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from retriever_server.access import read_token
from retriever_server.app import DEFAULT_TOP_K, create_app, service_of
from retriever_server.cache import DEFAULT_CACHE_ENTRIES
from retriever_server.encoders import Encoder, SentenceEncoder
from retriever_server.errors import ReloadError, ServingError
from retriever_server.opening import open_retriever, prepare_retriever
from retriever_server.request_log import log_to_stderr
from retriever_server.schema import RetrieverName
from retriever_server.service import Opened, Service

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
    cache_entries: int = DEFAULT_CACHE_ENTRIES,
    token_file: Path | None = None,
    log_requests: bool = False,
    load_encoder: Callable[[str], Encoder] = SentenceEncoder,
    report: Callable[[str], None] = print,
) -> None:
    """Answer on `host:port` (0 picks a free one) until SIGTERM or SIGINT, then finish what is under way.

    SIGHUP and `POST /admin/reload` load the folder again, while the old index serves on.

    `token_file` holds what clients must send as their bearer token. `log_requests` writes a line of JSON a
    request to stderr.

    Raises ServingError, IndexFolderError or EncoderError, in that order of checking, when it cannot start.
    """
    token = read_token(token_file) if token_file is not None else None

    def open_again() -> Opened:
        return open_retriever(folder, retriever, rerank=rerank, load_encoder=load_encoder)

    with _listen(host, port) as listener:
        prepared = [prepare_retriever(folder, retriever, rerank=rerank, load_encoder=load_encoder)]
        manifest = prepared[0][1]
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        report(f"{address} answers 503 while the {retriever} retriever loads")

        def open_first() -> Opened:
            # Taken, not kept: a reload must set the first index free.
            load_first, manifest = prepared.pop()
            return load_first(), manifest

        app = create_app(
            None,
            top_k=top_k,
            cache_entries=cache_entries,
            token=token,
            log=log_to_stderr if log_requests else None,
            open_again=open_again,
        )

        async def load(service: Service) -> None:
            await service.load(open_first)
            report(f"ready: {address}/retrieve ({manifest.num_passages:,} passages of {folder})")

        asyncio.run(_run(app, listener, load, report))
    report("stopped")


async def _run(
    app: FastAPI,
    listener: socket.socket,
    load: Callable[[Service], Coroutine[Any, Any, None]],
    report: Callable[[str], None],
) -> None:
    server, service = uvicorn.Server(server_config(app)), service_of(app)
    _stop_on_signals(server)
    reloads = _reload_on_hangup(service, report)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    loading = asyncio.create_task(load(service))
    await asyncio.wait([serving, loading], return_when=asyncio.FIRST_COMPLETED)
    if loading.done() and loading.exception() is not None:
        server.should_exit = True
    await serving
    if service.is_loading:
        os._exit(0)  # Stopped while loading: nothing is under way, and a thread inside a download cannot be ended.
    loading.result()
    await asyncio.gather(*reloads)


def server_config(app: FastAPI) -> uvicorn.Config:
    """How the app is served: a peer is who holds the socket, whatever headers say."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )


def _reload_on_hangup(service: Service, report: Callable[[str], None]) -> set[asyncio.Task[None]]:
    """From now on SIGHUP reloads the index; the reloads that are under way."""
    reloads: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        try:
            manifest = (await service.reload()).manifest
        except ReloadError as error:
            report(str(error))
        else:
            report(f"reloaded: {manifest.num_passages if manifest is not None else 0:,} passages")

    def start() -> None:
        task = asyncio.get_running_loop().create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, start)
    return reloads


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
