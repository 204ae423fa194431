"""Memory of processes that compute on a CPU: Ray's own jemalloc, and who keeps what for how long.

glibc hands every large tensor back to the kernel and faults in fresh pages for the next one. An allocator that returns
nothing was no faster in an update than one that returns slowly, and held 7.1 GiB where that one held 4.5: batches of
other lengths leave holes that nothing fits. So what computes returns its memory over ten seconds, and the dozen
processes beside it, which have nothing to gain, over one.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path

SETTINGS = "narenas:1,dirty_decay_ms:1000,muzzy_decay_ms:0"
KEPT_MILLISECONDS = 10_000


def allocator_environment() -> dict[str, str]:
    """Variables under which a new process uses jemalloc; none where Ray brings no jemalloc."""
    ray = importlib.util.find_spec("ray")
    library = Path(ray.origin).parent / "core" / "libjemalloc.so" if ray and ray.origin else None
    if library is None or not library.exists():
        return {}
    return {"LD_PRELOAD": str(library), "MALLOC_CONF": SETTINGS}


def keep_memory_in_use() -> bool:
    """True when this process from now on returns memory over ten seconds: the next batch or token will need it.

    vLLM calls this in each of its processes (entry-point group `vllm.general_plugins`), the trainer when it starts.
    Where jemalloc is not in use nothing happens.
    """
    library = next((path for path in os.environ.get("LD_PRELOAD", "").split(":") if "jemalloc" in path), None)
    if library is None:
        return False
    decay = ctypes.c_ssize_t(KEPT_MILLISECONDS)
    value, size = ctypes.byref(decay), ctypes.c_size_t(ctypes.sizeof(decay))
    names = (b"arenas.dirty_decay_ms", b"arena.0.dirty_decay_ms")
    return all(ctypes.CDLL(library).mallctl(name, None, None, value, size) == 0 for name in names)
