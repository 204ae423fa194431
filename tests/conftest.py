"""Properties are not timed: the first example pays for imports, and the machine may be busy. Quick tests go first."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings

# Processes that share the cores must not compute with all of them: threads that wait for each other take the time.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
# What collection imports stays to the end; each pass of the collector over it, a quarter of the time, finds nothing.
gc.disable()
settings.register_profile("untimed", deadline=None, max_examples=40)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The start of every algorithm takes too long for each run of the tests."""
    parser.addoption("--algorithms", action="store_true", help="Start every algorithm for two steps too.")


def pytest_collection_finish() -> None:
    """From here on the collector looks at what tests make."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A mistake shows in the first minute; files stay together, so that what they share is made once."""
    if not config.getoption("--algorithms"):
        left_out = [item for item in items if item.get_closest_marker("algorithms")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    items.sort(key=lambda item: [item.get_closest_marker(name) is not None for name in ("engine", "slow")])
