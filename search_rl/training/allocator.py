"""Memory of trainer processes on a CPU: Ray's own jemalloc, told to keep what it has, and a bound on what it keeps.

glibc hands every large tensor back to the kernel and faults in fresh pages for the next one. An allocator that returns
nothing is faster, and grows from step to step, because episodes of other lengths leave holes that nothing fits.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

SETTINGS = "narenas:1,dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always"
GROWTH_ALLOWED = 1.25
_PURGE_ALL_ARENAS = b"arena.4096.purge"


def allocator_environment() -> dict[str, str]:
    """Variables under which a new process uses jemalloc; none where Ray brings no jemalloc."""
    ray = importlib.util.find_spec("ray")
    library = Path(ray.origin).parent / "core" / "libjemalloc.so" if ray and ray.origin else None
    if library is None or not library.exists():
        return {}
    return {"LD_PRELOAD": str(library), "MALLOC_CONF": SETTINGS}


@dataclass(slots=True)
class MemoryBound:
    """Returns unused memory to the kernel when a process has grown by a quarter over what its first pass needed."""

    first_bytes: int | None = None

    def check(self) -> bool:
        """Call it after each pass; True when memory was returned."""
        resident_bytes = psutil.Process().memory_info().rss
        if self.first_bytes is None:
            self.first_bytes = resident_bytes
        if resident_bytes <= self.first_bytes * GROWTH_ALLOWED:
            return False
        return _purge()


def _purge() -> bool:
    """False where this process does not use jemalloc."""
    library = next((path for path in os.environ.get("LD_PRELOAD", "").split(":") if "jemalloc" in path), None)
    if library is None:
        return False
    return bool(ctypes.CDLL(library).mallctl(_PURGE_ALL_ARENAS, None, None, None, ctypes.c_size_t(0)) == 0)
