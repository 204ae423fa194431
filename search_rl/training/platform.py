"""A CPU as a verl platform, registered when VERL_PLATFORM=cpu; loaded by the entry-point group `verl.plugins`."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from search_rl.training.patches import (
    check_versions,
    is_cpu_platform,
    name_vllm_distribution,
    open_gloo_once,
)


def _device_module() -> types.ModuleType:
    """`torch.cpu` with the memory and RNG functions that verl asks of a device module; memory is the process's."""
    process = psutil.Process()

    def resident_bytes(*_: Any) -> int:
        return int(process.memory_info().rss)

    def free_and_total_bytes(*_: Any) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def nothing(*_: Any, **__: Any) -> None:
        return None

    module = types.ModuleType("search_rl_cpu_device")
    vars(module).update({name: value for name, value in vars(torch.cpu).items() if not name.startswith("__")})
    vars(module).update(
        memory_allocated=resident_bytes,
        max_memory_allocated=resident_bytes,
        memory_reserved=resident_bytes,
        max_memory_reserved=resident_bytes,
        reset_peak_memory_stats=nothing,
        mem_get_info=free_and_total_bytes,
        empty_cache=nothing,
        ipc_collect=nothing,
        synchronize=nothing,
        set_device=nothing,
        get_device_name=lambda *_: "CPU",
        current_device=lambda: "cpu",
        manual_seed=torch.manual_seed,
        manual_seed_all=torch.manual_seed,
        get_rng_state=lambda *_: torch.get_rng_state(),
        set_rng_state=lambda state, *_: torch.set_rng_state(state),
        is_initialized=lambda: True,
        set_per_process_memory_fraction=nothing,
    )
    return module


class CpuPlatform(PlatformBase):
    """One logical accelerator made of this machine's cores. Ray knows it as a "GPU", the only name verl counts."""

    _module = _device_module()

    @property
    def device_name(self) -> str:
        """torch's name of the device."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """No vendor of its own."""
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        """The stand-in for torch.cuda."""
        return self._module

    def is_available(self) -> bool:
        """A CPU is always there."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Never detected, only asked for, so that CPU actors on GPU hosts do not pick it."""
        return False

    def current_device(self) -> str:
        """The one device."""
        return "cpu"

    def device_count(self) -> int:
        """One."""
        return 1

    def set_device(self, device_index: int) -> None:
        """Nothing to choose."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing runs behind our back."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """No allocator to set."""

    def empty_cache(self) -> None:
        """No cache to empty."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """No compute capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Collectives run on gloo."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """The variable that verl sets for its rollout servers; without effect here."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No ranges to mark."""
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        """verl's placement counts only "GPU" and "NPU"; `ray_init.num_gpus` makes it a logical number."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Nothing to keep Ray from setting."""
        return []

    def is_ipc_supported(self) -> bool:
        """Weights go to the rollout engine through shared memory."""
        return False

    def cudart(self) -> None:
        """No CUDA runtime."""


if is_cpu_platform():
    check_versions()
    PlatformRegistry.register("cpu")(CpuPlatform)
    name_vllm_distribution()
    open_gloo_once()
