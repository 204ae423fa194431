"""One process that serves an index: how it opens it, and how it answers, loads and stops."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI

from retriever_server.app import Reload, create_app, service_of
from retriever_server.errors import ReloadError
from retriever_server.manifest import Manifest
from retriever_server.request_log import log_to_stderr
from retriever_server.service import Opened, Service
from retriever_server.settings import ServiceSettings

if TYPE_CHECKING:
    from retriever_server.opening import LoadEncoder

BACKLOG = 2048
# A drain must end before the retries of clients do.
DRAIN_SECONDS = 25
# Pooled clients sit idle between two turns of a rollout.
_KEEP_ALIVE_SECONDS = 75
# Ray, when it starts on the thread that loads, takes SIGTERM for itself: so often it is taken back meanwhile.
_SIGNALS_SECONDS = 0.1

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class IndexOpener:
    """Opens a folder as the settings say, models and all; can be sent to another process.

    `load_encoder` is for an encoder that is no sentence-transformers model.
    """

    folder: Path
    settings: ServiceSettings
    load_encoder: LoadEncoder | None = None

    def __call__(self) -> Opened:
        """What is served, read into memory as far as it fits. Raises IndexFolderError and EncoderError."""
        from retriever_server.encoders import SentenceEncoder
        from retriever_server.opening import prepare_retriever
        from retriever_server.read_ahead import read_ahead
        from retriever_server.rerank import CrossEncoderReranker

        trust = self.settings.trust_remote_code
        load, manifest = prepare_retriever(
            self.folder,
            self.settings.retriever,
            rerank=self.settings.rerank,
            load_encoder=self.load_encoder or partial(SentenceEncoder, trust_remote_code=trust),
            load_reranker=partial(CrossEncoderReranker, trust_remote_code=trust),
        )
        with ThreadPoolExecutor(1) as thread:
            reading = thread.submit(read_ahead, self.folder)
            retriever = load()
            reading.result()
        return retriever, manifest


def make_app(
    settings: ServiceSettings,
    open_again: Callable[[], Opened] | None,
    *,
    reload_everywhere: Reload | None = None,
    num_threads: int = 1,
) -> FastAPI:
    """The app as the settings say, without an index yet."""
    return create_app(
        None,
        top_k=settings.top_k,
        limits=settings.limits,
        batching=settings.batching,
        cache_entries=settings.cache_entries,
        token=settings.token,
        log=log_to_stderr if settings.log_requests else None,
        open_again=open_again,
        reload_everywhere=reload_everywhere,
        num_threads=num_threads,
    )


def server_config(
    app: FastAPI, *, backlog: int = BACKLOG, headers: list[tuple[str, str]] | None = None
) -> uvicorn.Config:
    """How the app is served: a peer is who holds the socket, whatever headers say."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        backlog=backlog,
        headers=headers,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )


def serve_alone(
    app: FastAPI,
    listener: socket.socket,
    open_first: Callable[[], Opened],
    *,
    on_ready: Callable[[Manifest | None], None],
    report: Report,
    abandon: Callable[[], None] = lambda: None,
) -> None:
    """Answer 503 at once and searches once the index is loaded; return after SIGTERM or SIGINT, all answered.

    SIGHUP reloads. A stop while an index loads calls `abandon` and exits the process. Raises what opening raised.
    Must run on the main thread.
    """

    async def load(server: uvicorn.Server, service: Service) -> Manifest | None:
        # What is imported to open an index would keep the port from answering.
        while not (server.started or server.should_exit):
            await asyncio.sleep(0.01)
        # A task that held the index itself would hold it after a reload, too.
        return (await service.load(open_first)).manifest

    async def run() -> None:
        server, service = uvicorn.Server(server_config(app)), service_of(app)
        _stop_on_signals(server)
        reloads = _reload_on_hangup(service, report)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        loading = asyncio.create_task(load(server, service))
        done: set[asyncio.Task[Any]] = set()
        while not done:
            done, _ = await asyncio.wait(
                [serving, loading], timeout=_SIGNALS_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            _stop_on_signals(server)
        if loading.done() and loading.exception() is None:
            on_ready(loading.result())
        elif loading.done():
            server.should_exit = True
        await serving
        if service.is_loading:
            # Nothing is under way, and a thread inside a download cannot be ended.
            abandon()
            os._exit(0)
        loading.result()
        await asyncio.gather(*reloads)

    with kept_signals():
        asyncio.run(run())


@contextmanager
def kept_signals() -> Iterator[None]:
    """What signals do is afterwards as it was before."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _stop_on_signals(server: uvicorn.Server) -> None:
    """uvicorn raises a signal again once it has stopped: with these handlers that is a clean end."""

    def stop(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _reload_on_hangup(service: Service, report: Report) -> set[asyncio.Task[None]]:
    """From now on SIGHUP reloads the index; the reloads that are under way."""
    reloads: set[asyncio.Task[None]] = set()

    async def here() -> Manifest | None:
        return (await service.reload()).manifest

    async def reload() -> None:
        report(await outcome_of_reload(here))

    def start() -> None:
        task = asyncio.get_running_loop().create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, start)
    return reloads


async def outcome_of_reload(reload: Reload) -> str:
    """Reload, and what is to be said about it."""
    try:
        manifest = await reload()
    except ReloadError as error:
        return str(error)
    return f"reloaded: {manifest.num_passages if manifest is not None else 0:,} passages"
