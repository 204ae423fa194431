"""An engine process that ends when its parent is killed; found by the entry-point group `vllm.general_plugins`.

vLLM 0.28 ends its engine when its parent ends it. A parent that is killed (SIGKILL, out of memory) cannot, and the
engine waited for requests for ever, with all its memory.
"""

from __future__ import annotations

import multiprocessing
import os
from threading import Thread


def end_with_parent() -> None:
    """In a process that `multiprocessing` started: leave at once when the parent is gone. Elsewhere nothing is done."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, name="ends with its parent", daemon=True).start()
