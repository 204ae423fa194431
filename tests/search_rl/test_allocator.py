"""What a trainer process keeps of its memory, in a process that uses the allocator as a trainer does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from search_rl.allocator import KeptMemory, allocator_environment

GROW = """
import sys, time, psutil
from search_rl.allocator import KeptMemory
resident = lambda: psutil.Process().memory_info().rss >> 20
kept = KeptMemory() if "keep" in sys.argv else None
first = kept and kept.check()
blocks = [bytearray(size << 20) for size in (2, 3, 64, 64, 64, 64) * 3]
del blocks
time.sleep(1.5)
bytearray(1 << 20)
print(resident(), first, *(kept.check(), resident(), kept.check()) if kept else ())
"""


def grow(*arguments: str) -> list[str]:
    variables = allocator_environment()
    assert variables, "this Ray brings no jemalloc: a CPU run would fault its memory in anew at every step"
    command = [sys.executable, "-c", GROW, *arguments]
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=True
    ).stdout.split()


def test_memory_is_kept_until_it_has_grown_by_a_tenth_and_then_returned() -> None:
    """Would catch a trainer that grows by a gigabyte a step, until the machine has no memory left."""
    before, first, returned, after, again = grow("keep")
    assert (first, returned, again) == ("False", "True", "False")
    assert int(before) > 700, "the allocator gave memory back by itself"
    assert int(after) < 200


def test_a_process_that_does_not_ask_keeps_nothing() -> None:
    """Would catch a dozen helpers that each hold on to what they needed for a moment."""
    assert int(grow()[0]) < 400


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a crash where there is no jemalloc to ask."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert not KeptMemory(first_bytes=1).check()
