"""No engine without somebody who asks it."""

from __future__ import annotations

import subprocess
import sys

import psutil

PARENT = """
import multiprocessing, time
from search_rl.engines.orphans import end_with_parent

def engine():
    end_with_parent()
    print("up", flush=True)
    time.sleep(300)

if __name__ == "__main__":
    end_with_parent()  # here it does nothing: this process has no parent of its own kind
    multiprocessing.get_context("fork").Process(target=engine).start()
"""


def test_killed_parent_takes_its_engine_along() -> None:
    """A killed evaluation left VLLM::EngineCore with 1.9 GiB, waiting for ever."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        (engine,) = psutil.Process(parent.pid).children()
        parent.kill()
        _, alive = psutil.wait_procs([engine], timeout=20)
    assert alive == []
