"""An encoder that a reader can check by hand, a corpus of six passages, and a server process over them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from retriever_server.encoders import EncoderSpec, normalised
from retriever_server.schema import RETRIEVER_NAMES, Passage, RetrieverName
from retriever_server.serving import serve
from retriever_server.settings import ClusterPlan, ServiceSettings

NAME = "bag-of-words"
PLANETS = (
    Passage("mercury", "Mercury", "Mercury is the smallest planet and has no moon."),
    Passage("venus", "Venus", "Venus is the hottest planet and has no moon.", "https://example.org/venus"),
    Passage("earth", "Earth", "Earth has one moon and liquid water."),
    Passage("mars", "Mars", "Mars is red and has two moons, Phobos and Deimos."),
    Passage("jupiter", "Jupiter", 'Jupiter is the largest planet; its storm is called "the Great Red Spot".'),
    Passage("pluto", "", "Pluto was called a planet until 2006."),
)


class BagOfWordsEncoder:
    """Counts words in 256 hashed buckets; `flipped` makes another model of the same name and shape."""

    def __init__(self, *, flipped: bool = False, dimension: int = 256) -> None:
        self.spec = EncoderSpec(NAME, "", "", dimension, max_length_tokens=64, backend="numpy")
        self._salt = b"flipped " if flipped else b""

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        return self._encode(texts)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        counts_ND = np.zeros((len(texts), self.spec.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()):
                counts_ND[row, crc32(self._salt + word.encode()) % self.spec.dimension] += 1
        return normalised(counts_ND)


_loaded: list[str] = []


def load_encoder(name: str) -> BagOfWordsEncoder:
    """The encoder; `--never-loads`, `--loads-once` and `--slow-search` on the command line do as they say."""
    if "--never-loads" in sys.argv or ("--loads-once" in sys.argv and _loaded):
        time.sleep(600)
    _loaded.append(name)
    return SlowEncoder() if "--slow-search" in sys.argv else BagOfWordsEncoder()


class SlowEncoder(BagOfWordsEncoder):
    """Takes half a second for a batch of queries."""

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        time.sleep(0.5)
        return super().encode_queries(texts)


if __name__ == "__main__":
    name: RetrieverName = next((word for word in RETRIEVER_NAMES if word in sys.argv), "dense")
    serve(
        Path(sys.argv[1]),
        ServiceSettings(retriever=name, log_requests="--log-json" in sys.argv),
        port=int(sys.argv[2]),
        workers=2 if "--two-workers" in sys.argv else 1,
        cluster=ClusterPlan(num_shards=2, num_replicas=2) if "--ray" in sys.argv else None,
        load_encoder=load_encoder,
    )
