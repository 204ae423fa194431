"""Memory of processes that compute on a CPU: Ray's own jemalloc, and who keeps what for how long.

glibc hands every large tensor back to the kernel and faults in fresh pages for the next one. An allocator that returns
nothing is faster, and grows from step to step, because episodes of other lengths leave holes that nothing fits. So the
trainer keeps its memory up to a bound, the rollout engine while it generates, and the dozen processes beside them,
which have nothing to gain, return what they do not use.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

SETTINGS = "narenas:1,dirty_decay_ms:1000,muzzy_decay_ms:0"
ENGINE_MILLISECONDS = 10_000
GROWTH_ALLOWED = 1.1
_ALL_ARENAS = 4096
_NEVER = -1


def allocator_environment() -> dict[str, str]:
    """Variables under which a new process uses jemalloc; none where Ray brings no jemalloc."""
    ray = importlib.util.find_spec("ray")
    library = Path(ray.origin).parent / "core" / "libjemalloc.so" if ray and ray.origin else None
    if library is None or not library.exists():
        return {}
    return {"LD_PRELOAD": str(library), "MALLOC_CONF": SETTINGS}


def keep_while_generating() -> None:
    """From now on this process returns memory ten seconds after its last use: the next token will need it again.

    vLLM calls this in each of its processes (entry-point group `vllm.general_plugins`). Where jemalloc is not in use,
    nothing happens.
    """
    _set_decay(ENGINE_MILLISECONDS)


@dataclass(slots=True)
class KeptMemory:
    """From now on this process keeps its memory, until it has grown by a tenth over what its first pass needed.

    Nothing happens in a process that does not use jemalloc.
    """

    first_bytes: int | None = None

    def __post_init__(self) -> None:
        _set_decay(_NEVER)

    def check(self) -> bool:
        """Call it after each pass; True when unused memory was returned."""
        resident_bytes = psutil.Process().memory_info().rss
        if self.first_bytes is None:
            self.first_bytes = resident_bytes
        if resident_bytes <= self.first_bytes * GROWTH_ALLOWED:
            return False
        return _tell(f"arena.{_ALL_ARENAS}.purge")


def _set_decay(milliseconds: int) -> None:
    for name in ("arenas.dirty_decay_ms", "arena.0.dirty_decay_ms"):
        _tell(name, ctypes.c_ssize_t(milliseconds))


def _tell(name: str, value: ctypes.c_ssize_t | None = None) -> bool:
    """Set or do what jemalloc calls `name`; False where there is no jemalloc, or no such name."""
    library = next((path for path in os.environ.get("LD_PRELOAD", "").split(":") if "jemalloc" in path), None)
    if library is None:
        return False
    pointer, size = (ctypes.byref(value), ctypes.sizeof(value)) if value is not None else (None, 0)
    return bool(ctypes.CDLL(library).mallctl(name.encode(), None, None, pointer, ctypes.c_size_t(size)) == 0)
