"""The process that keeps workers alive and of one mind."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress

import uvicorn
from prometheus_client.multiprocess import mark_process_dead

from retriever_server.errors import ReloadError, ServingError
from retriever_server.manifest import Manifest
from retriever_server.process import DRAIN_SECONDS, IndexOpener, Report, make_app, outcome_of_reload, server_config
from retriever_server.worker import Message, Opened, Order, Refused, ReloadDone, ReloadWanted, work

_MAX_FIRST_DEATHS = 3
_MAX_PAUSE_SECONDS = 30
_KILL_SECONDS = DRAIN_SECONDS + 5
# Spawned, not forked: a fork after a library has started its threads hangs.
_CONTEXT = multiprocessing.get_context("spawn")


class Supervisor:
    """Starts `num_workers` on a socket, replaces those that die, and reloads all or none."""

    def __init__(
        self,
        listener: socket.socket,
        open_index: IndexOpener,
        num_workers: int,
        *,
        on_ready: Callable[[Manifest | None], None],
        report: Report,
    ) -> None:
        self._listener, self._open_index, self._num_workers = listener, open_index, num_workers
        self._on_ready, self._report = on_ready, report
        self._serving: set[WorkerProcess] = set()
        self._served: Opened | None = None
        self._reloading = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._reloads: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, and let the workers answer what they have. Raises ServingError."""
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._start(self._reload_and_tell()))
        tasks = [asyncio.create_task(self._keep_worker()) for _ in range(self._num_workers)]
        tasks.append(asyncio.create_task(self._hold_port()))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        # Closed here and in the workers, the port refuses: better than a connection that nobody takes.
        self._listener.close()
        for task in (*tasks, *self._reloads, stopping):
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def reload(self) -> Manifest | None:
        """What all workers serve now. Raises ReloadError, and all serve what they did."""
        async with self._reloading:
            if not self._serving:
                raise ReloadError("the index was not reloaded: no worker serves at the moment")
            return (await self._swap(set(self._serving))).manifest

    async def _keep_worker(self) -> None:
        num_deaths = 0
        while True:
            worker = WorkerProcess(self._listener, self._open_index, self._on_reload_wanted)
            try:
                fault = await self._live(worker)
            finally:
                num_deaths = 0 if worker in self._serving else num_deaths + 1
                self._serving.discard(worker)
                await self._tell_change()
                await worker.stop()
                mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
            fault = fault or f"a worker ended (exit code {worker.exit_code})"
            if self._served is None and num_deaths == _MAX_FIRST_DEATHS:
                raise ServingError(f"{fault} while it loaded, {num_deaths} times; is there memory for all workers?")
            self._report(f"{fault}; another one starts")
            await asyncio.sleep(min(2**num_deaths - 1, _MAX_PAUSE_SECONDS))

    async def _live(self, worker: WorkerProcess) -> str:
        """See a worker from its start to its end; why it ended, empty when it did not say. Raises ServingError."""
        match await worker.answer():
            case Opened() as opened:
                try:
                    await self._admit(worker, opened)
                except ReloadError as error:
                    return f"a worker found another index and was stopped ({error})"
            case Refused(reason):
                if self._served is None:
                    raise ServingError(reason)
                return f"a worker could not load the index ({reason})"
        await worker.gone.wait()
        return ""

    async def _admit(self, worker: WorkerProcess, opened: Opened) -> None:
        """Let it take connections, once all serve one index: the folder may hold another than when the others loaded.

        Raises ReloadError.
        """
        async with self._reloading:
            is_first = self._served is None
            if is_first:
                self._served = opened
            elif opened != self._served:
                await self._swap({*self._serving, worker})
            worker.send(Order.ACCEPT)
            self._serving.add(worker)
            if is_first:
                self._on_ready(opened.manifest)
        await self._tell_change()

    async def _swap(self, workers: set[WorkerProcess]) -> Opened:
        """Have all load the folder anew, then all serve it, or none. Raises ReloadError."""
        for worker in workers:
            worker.send(Order.PREPARE)
        outcomes = [outcome for worker in workers if (outcome := await worker.answer()) is not None]
        loaded = [outcome for outcome in outcomes if isinstance(outcome, Opened)]
        reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, Refused)]
        if not outcomes or any(outcome != loaded[0] for outcome in loaded):
            reasons.append("the index was not reloaded: the folder or the workers changed meanwhile; try again")
        for worker in workers:
            worker.send(Order.DROP if reasons else Order.SWAP)
        if reasons:
            raise ReloadError(reasons[0])
        self._served = loaded[0]
        return loaded[0]

    async def _hold_port(self) -> None:
        """Answer 503 for as long as no worker takes connections."""
        app = make_app(self._open_index.settings, self._open_index)
        while True:
            # A client must not keep a connection to the process that will answer no other.
            server = uvicorn.Server(server_config(app, headers=[("Connection", "close")]))
            answering = asyncio.create_task(server.serve(sockets=[self._listener.dup()]))
            try:
                await self._until(lambda: bool(self._serving))
            finally:
                server.should_exit = True
                await answering
            await self._until(lambda: not self._serving)

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(holds)

    async def _tell_change(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _on_reload_wanted(self, worker: WorkerProcess) -> None:
        self._start(self._reload_for(worker))

    async def _reload_for(self, worker: WorkerProcess) -> None:
        try:
            outcome: Opened | Refused = Opened(await self.reload())
        except ReloadError as error:
            outcome = Refused(str(error))
        worker.send(ReloadDone(outcome))

    async def _reload_and_tell(self) -> None:
        self._report(await outcome_of_reload(self.reload))

    def _start(self, reload: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(reload)
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)


class WorkerProcess:
    """A worker as its supervisor sees it; `gone` is set when the process has ended."""

    def __init__(
        self, listener: socket.socket, open_index: IndexOpener, on_reload_wanted: Callable[[WorkerProcess], None]
    ) -> None:
        self._control, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=work, args=(theirs, listener, open_index), daemon=True)
        self._process.start()
        theirs.close()
        self._on_reload_wanted = on_reload_wanted
        self._answers: asyncio.Queue[Opened | Refused | None] = asyncio.Queue()
        self.gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._control.fileno(), self._hear)

    @property
    def pid(self) -> int:
        """Of the process, also when it has ended."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None until it was stopped; a signal is minus its number."""
        return self._process.exitcode

    async def answer(self) -> Opened | Refused | None:
        """The next one; None when there will be none, because the process has ended."""
        if self.gone.is_set() and self._answers.empty():
            return None
        return await self._answers.get()

    def send(self, message: Order | ReloadDone) -> None:
        """Say it, or nothing to a process that has ended."""
        with suppress(OSError):
            self._control.send(message)

    async def stop(self) -> None:
        """Have it answer what it has; afterwards it has ended."""
        self._process.terminate()
        await asyncio.to_thread(self._process.join, _KILL_SECONDS)
        self._process.kill()
        await asyncio.to_thread(self._process.join)
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()

    def _hear(self) -> None:
        try:
            while self._control.poll():
                message: Message = self._control.recv()
                if isinstance(message, ReloadWanted):
                    self._on_reload_wanted(self)
                else:
                    self._answers.put_nowait(message)
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self.gone.set()
            self._answers.put_nowait(None)
