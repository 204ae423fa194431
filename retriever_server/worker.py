"""One of several processes that answer on one socket, and what it and its supervisor say to each other."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from multiprocessing.connection import Connection

import uvicorn

from retriever_server.errors import ReloadError, RetrieverServerError
from retriever_server.manifest import Manifest
from retriever_server.process import BACKLOG, IndexOpener, make_app, server_config
from retriever_server.served import ServedIndex
from retriever_server.service import Service


class Order(Enum):
    """From the supervisor: take connections; load the folder again; serve what was loaded; forget it."""

    ACCEPT = auto()
    PREPARE = auto()
    SWAP = auto()
    DROP = auto()


@dataclass(frozen=True, slots=True)
class Opened:
    """An index is loaded and warm; with its manifest."""

    manifest: Manifest | None


@dataclass(frozen=True, slots=True)
class Refused:
    """It is not, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReloadWanted:
    """A client of this worker asks for a reload: all workers must do it."""


@dataclass(frozen=True, slots=True)
class ReloadDone:
    """The answer to ReloadWanted: what all workers serve now, or why not."""

    outcome: Opened | Refused


Message = Opened | Refused | ReloadWanted


def work(control: Connection, listener: socket.socket, open_index: IndexOpener) -> None:
    """The life of a worker: load, take connections when told to, stop on SIGTERM or with its supervisor."""
    # Ctrl-C and a closed terminal reach the whole group: the supervisor says what they mean.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(_Worker(control, listener, open_index).run())


class _FairServer(uvicorn.Server):
    """Takes one connection a turn: an idle worker gets the next one, where a busy one would take them all."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server; the queue of the socket, which all workers share, stays long."""
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)


class _Worker:
    def __init__(self, control: Connection, listener: socket.socket, open_index: IndexOpener) -> None:
        self._control, self._listener, self._open_index = control, listener, open_index
        self._app = make_app(open_index.settings, open_index, reload_everywhere=self._reload_everywhere)
        self._service: Service = self._app.state.service
        self._server = _FairServer(server_config(self._app, backlog=1))
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        self._may_accept = asyncio.Event()
        self._asked: deque[asyncio.Future[Opened | Refused]] = deque()
        self._fresh: ServedIndex | None = None

    async def run(self) -> None:
        """See work."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._control.fileno(), self._hear)
        # Until connections are taken nothing is under way, and a thread inside a download cannot be ended.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        try:
            manifest = (await self._service.load(self._open_index)).manifest
        except (RetrieverServerError, OSError, RuntimeError, ValueError) as error:
            self._control.send(Refused(str(error) or type(error).__name__))
            return
        self._control.send(Opened(manifest))
        obeying = asyncio.create_task(self._obey())
        await self._may_accept.wait()
        signal.signal(signal.SIGTERM, self._stop)
        await self._server.serve(sockets=[self._listener])
        obeying.cancel()
        if self._service.is_loading:
            os._exit(0)

    def _hear(self) -> None:
        try:
            while self._control.poll():
                message = self._control.recv()
                if isinstance(message, Order):
                    self._orders.put_nowait(message)
                else:
                    self._asked.popleft().set_result(message.outcome)
        except (EOFError, OSError):
            # The supervisor is gone, and another one may want the port.
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            if not self._server.started:
                os._exit(0)
            self._stop()

    def _stop(self, *_: object) -> None:
        self._server.should_exit = True

    async def _obey(self) -> None:
        while True:
            match await self._orders.get():
                case Order.ACCEPT:
                    self._may_accept.set()
                case Order.PREPARE:
                    self._control.send(await self._prepare())
                case Order.SWAP if self._fresh is not None:
                    self._service.swap(self._fresh)
                    self._fresh = None
                case _:
                    self._fresh = None

    async def _prepare(self) -> Opened | Refused:
        try:
            self._fresh = await self._service.prepare()
        except ReloadError as error:
            return Refused(str(error))
        return Opened(self._fresh.manifest)

    async def _reload_everywhere(self) -> Manifest | None:
        answer: asyncio.Future[Opened | Refused] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        self._control.send(ReloadWanted())
        match await answer:
            case Opened(manifest):
                return manifest
            case Refused(reason):
                raise ReloadError(reason)
