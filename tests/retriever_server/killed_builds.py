"""A process that builds an index again and again and kills the build at random moments, then lets it end.

Each build is a fork of a process that has not searched yet: a start of Python each would take most of the time.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from retriever_server.encoders import EncoderSpec, normalised
from retriever_server.index import build_index


class LoggingEncoder:
    """A random vector a text, seeded by it; the log gets the number of passages once they are encoded (5 ms)."""

    spec = EncoderSpec("random", "", "", dimension=32, max_length_tokens=64)

    def __init__(self, log: Path) -> None:
        self._log = log

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        rows = [np.random.default_rng(crc32(text.encode())).normal(size=32) for text in texts]
        return normalised(np.asarray(rows, dtype=np.float32))

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        vectors_ND = self.encode_queries(texts)
        time.sleep(0.005)
        with self._log.open("a") as log:
            log.write(f"{len(texts)}\n")
        return vectors_ND


def start_build(corpus: Path, out: Path, log: Path) -> int:
    """The process id of a build."""
    pid = os.fork()
    if pid == 0:
        build_index(corpus, out, LoggingEncoder(log))
        os._exit(0)
    return pid


def identity(folder: Path) -> int | None:
    """A number that another folder of this name does not have."""
    return folder.stat().st_ino if folder.exists() else None


def main(corpus: Path, out: Path, log: Path, kill_after_seconds: Sequence[float]) -> None:
    """Print how many of the builds were killed before their index was in its place; the last one is not killed."""
    num_killed = 0
    for seconds in kill_after_seconds:
        index_before = identity(out)
        pid = start_build(corpus, out, log)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        num_killed += identity(out) == index_before
    if os.waitpid(start_build(corpus, out, log), 0)[1] != 0:
        sys.exit("the last build failed")
    print(num_killed)


if __name__ == "__main__":
    moments = random.Random(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), [moments.uniform(0.02, 0.15) for _ in range(8)])
