"""The same service with its searches in Ray Serve deployments: encoder, shards of the dense index, BM25, reranker.

This process answers clients as always, so that the contract, its limits, counts and drain are those of a service on
one machine; for a search it asks the encoder, then all shards at once, and merges what they find. A part that cannot
be reached is 503 for the request, never an answer without that part's passages. Ray's HTTP proxy is not started.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import socket
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from retriever_server.errors import PartGoneError, ServingError
from retriever_server.manifest import Manifest
from retriever_server.opening import LoadEncoder
from retriever_server.process import Report, make_app, serve_alone
from retriever_server.remote import RemotePart, assembled
from retriever_server.service import Opened
from retriever_server.settings import ClusterPlan, ServiceSettings
from retriever_server.steps import Part, Replica, plan_parts

_CONNECT_SECONDS = 5.0
_OWN_ERROR = re.compile(r"(retriever_server\.errors\.)\w+: ")
# A replica is stopped when the process in front has its last answer, or wants none.
_STOP_SECONDS = 2.0
_generations = itertools.count(1)


def serve_on_cluster(
    folder: Path,
    settings: ServiceSettings,
    plan: ClusterPlan,
    listener: socket.socket,
    load_encoder: LoadEncoder | None,
    *,
    on_ready: Callable[[Manifest | None], None],
    report: Report,
) -> None:
    """As serve_alone; afterwards nothing that was started on the cluster is there any longer."""
    cluster = Cluster(plan, patience_seconds=settings.batching.deadline_seconds)

    def open_index() -> Opened:
        parts, store, manifest = plan_parts(folder.absolute(), settings, plan, load_encoder)
        return assembled(cluster.deploy(parts), store, manifest, settings), manifest

    # So many batches are under way: one at each replica of the slowest part, and one that is encoded meanwhile.
    app = make_app(settings, open_index, num_threads=plan.num_replicas + 1)
    try:
        serve_alone(app, listener, open_index, on_ready=on_ready, report=report, abandon=cluster.abandon)
    finally:
        cluster.stop()


class Cluster:
    """Ray, and what a service has deployed there; started with the first deployment.

    A step may take `patience_seconds`: after the deadline of a request nobody waits for it any longer.
    """

    def __init__(self, plan: ClusterPlan, *, patience_seconds: float) -> None:
        self._plan, self._patience_seconds = plan, patience_seconds
        self._is_started = False
        self._names: set[str] = set()
        # Ray's processes end with the thread that started them: this one stays.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")

    def deploy(self, parts: Sequence[Part]) -> dict[str, RemotePart]:
        """The parts by name, once all their replicas are well; they go when nobody holds them any longer.

        Raises ServingError.
        """
        self._thread.submit(
            self._start, num_cpus := len(parts) * self._plan.num_replicas * self._plan.cpus_per_replica
        ).result()
        self._check_free(num_cpus)
        prefix = f"search-rl-{os.getpid()}-{next(_generations)}"
        targets = [self._target(part, f"{prefix}-{part.name}") for part in parts]
        names = [target.name for target in targets]
        self._names.update(names)
        try:
            handles = serve.run_many(targets)
        except RuntimeError as error:
            reason = _reason(names) or str(error)
            self._delete(names)
            raise ServingError(f"the parts of the index cannot be deployed: {reason}") from error
        remote: dict[str, RemotePart] = {}
        for part, name, handle in zip(parts, names, handles, strict=True):
            remote[part.name] = deployed = DeployedPart(part.name, handle, self._patience_seconds)
            weakref.finalize(deployed, self._delete, [name]).atexit = False
        return remote

    def stop(self) -> None:
        """Afterwards nothing of it runs any longer: no deployment, and no Ray that was started here."""
        # Ray's processes are its own children's children, and orphans once those have gone.
        started = psutil.Process().children(recursive=True) if self._plan.address is None else []
        if self._is_started:
            self._is_started = False
            if self._plan.address is not None:
                for name in sorted(self._names):
                    serve.delete(name)
            ray.shutdown()
        _end(started)
        self._thread.shutdown(wait=False)

    def abandon(self) -> None:
        """The same at once, while another thread starts or deploys: what Ray starts meanwhile must not be missed."""
        if self._plan.address is not None:
            self.stop()
            return
        for process in psutil.Process().children():
            if process.name() == "raylet":
                process.suspend()
        started = psutil.Process().children(recursive=True)
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(started, timeout=_STOP_SECONDS)

    def _start(self, num_cpus: int) -> None:
        """A reload needs as much again while the old parts serve on: Ray's cores here are but numbers."""
        if self._is_started:
            return
        here = {"num_cpus": max(os.cpu_count() or 1, 2 * num_cpus), "include_dashboard": False}
        where = here if self._plan.address is None else {"address": self._plan.address}
        try:
            _check_reachable(self._plan.address or "")
            ray.init(**where, log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:
            raise ServingError(f"no Ray at {self._plan.address or 'this machine'} ({error}); see ray status") from error
        self._is_started = True
        serve.start(proxy_location="Disabled")
        logging.getLogger("ray.serve").setLevel(logging.WARNING)

    def _check_free(self, num_cpus: int) -> None:
        """Ray itself would wait for them for ever."""
        free = ray.available_resources().get("CPU", 0)
        if free < num_cpus:
            raise ServingError(
                f"the parts need {num_cpus} cores of the cluster, {free:g} are free; give fewer --shards, --replicas "
                "or --replica-cpus"
            )

    def _target(self, part: Part, name: str) -> serve.RunTarget:
        deployment = serve.deployment(Replica).options(
            name=part.name,
            num_replicas=self._plan.num_replicas,
            max_ongoing_requests=1,
            graceful_shutdown_timeout_s=_STOP_SECONDS,
            graceful_shutdown_wait_loop_s=0.1,
            ray_actor_options={"num_cpus": self._plan.cpus_per_replica},
        )
        return serve.RunTarget(target=deployment.bind(part), name=name, route_prefix=None)

    def _delete(self, names: Sequence[str]) -> None:
        self._names.difference_update(names)
        if self._is_started:
            for name in names:
                serve.delete(name, _blocking=False)


class DeployedPart:
    """See remote.RemotePart."""

    def __init__(self, name: str, handle: Any, patience_seconds: float) -> None:
        self._name, self._handle, self._patience_seconds = name, handle, patience_seconds

    def ask(self, *arguments: Any) -> Callable[[], Any]:
        """See RemotePart."""
        try:
            response = self._handle.remote(*arguments)
        except RayServeException as error:
            raise self._gone(error) from error

        def answer() -> Any:
            try:
                return response.result(timeout_s=self._patience_seconds)
            except RayTaskError:
                # The step itself failed: that is no outage.
                raise
            except (RayError, RayServeException, TimeoutError) as error:
                response.cancel()
                raise self._gone(error) from error

        return answer

    def _gone(self, error: Exception) -> PartGoneError:
        return PartGoneError(f"{self._name} cannot be reached ({type(error).__name__})", retry_after_seconds=2)


def _check_reachable(address: str) -> None:
    """Raise OSError for a host and port where nobody listens: Ray itself tries for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "://" not in address:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()


def _reason(names: Sequence[str]) -> str:
    """What a replica said when it could not be made, empty when it said nothing."""
    applications = serve.status().applications
    for name in names:
        for deployment in applications[name].deployments.values() if name in applications else ():
            lines = [line for line in deployment.message.splitlines() if _OWN_ERROR.match(line.strip())]
            if lines:
                return str(lines[-1].strip().partition(": ")[2])
    return ""


def _end(processes: Sequence[psutil.Process], patience_seconds: float = 3.0) -> None:
    _, alive = psutil.wait_procs(processes, timeout=patience_seconds)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=patience_seconds)
