"""What a process keeps of its memory, in a process that uses the allocator as trainer and engine do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from search_rl.allocator import allocator_environment, keep_memory_in_use

pytestmark = pytest.mark.slow

GROW = """
import sys, time, psutil
from search_rl.allocator import keep_memory_in_use
print(keep_memory_in_use() if "keep" in sys.argv else None)
blocks = [bytearray(size << 20) for size in (2, 3, 64, 64, 64, 64) * 3]
del blocks
time.sleep(1.5)
bytearray(1 << 20)
print(psutil.Process().memory_info().rss >> 20)
"""


def grow(*arguments: str) -> list[str]:
    """Whether memory is kept, and the MiB that are, a second and a half after 780 were freed."""
    variables = allocator_environment()
    assert variables, "this Ray brings no jemalloc: a CPU run would fault its memory in anew at every step"
    command, environment = [sys.executable, "-c", GROW, *arguments], {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def test_jemalloc_takes_what_it_is_told() -> None:
    """Would catch a name that jemalloc does not know, with which nothing is kept, in silence."""
    assert grow("keep")[0] == "True"


def test_a_process_that_does_not_ask_keeps_nothing() -> None:
    """Would catch a dozen helpers that each hold on to what they needed for a moment."""
    assert int(grow()[1]) < 400


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a crash where there is no jemalloc to ask."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert not keep_memory_in_use()
