"""The bound on what a trainer process keeps, in a process that uses the allocator as a trainer does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from search_rl.training.allocator import MemoryBound, allocator_environment

GROW = """
import psutil
from search_rl.training.allocator import MemoryBound
resident = lambda: psutil.Process().memory_info().rss >> 20
bound = MemoryBound()
first = bound.check()
blocks = [bytearray(1 << 26) for _ in range(8)]
del blocks
kept = resident()
print(first, kept, bound.check(), resident(), bound.check())
"""


def test_memory_is_kept_until_it_has_grown_by_a_quarter_and_then_returned() -> None:
    """Would catch a trainer that grows by a gigabyte a step, until the machine has no memory left."""
    variables = allocator_environment()
    if not variables:
        pytest.skip("this Ray brings no jemalloc")
    output = subprocess.run(
        [sys.executable, "-c", GROW], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    ).stdout.split()
    first, kept, returned, left, again = output
    assert (first, returned, again) == ("False", "True", "False")
    assert int(kept) > 500, "the allocator gave memory back by itself"
    assert int(left) < 200


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a crash where there is no jemalloc to ask."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert not MemoryBound(first_bytes=1).check()
