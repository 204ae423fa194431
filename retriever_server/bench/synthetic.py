"""An index of any size without a corpus or a model: random unit vectors, passages of random words."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import orjson
from numpy.typing import NDArray

from retriever_server.encoders import EncoderSpec, normalised
from retriever_server.index import build_index
from retriever_server.manifest import Manifest, read_manifest, write_manifest
from retriever_server.schema import Passage

SYNTHETIC_ENCODER = "synthetic"
_PASSAGE_WORDS = 100
_QUERY_WORDS = 10
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body "
    "information back parent face others level office door health person art war history party result change morning "
    "reason research girl guy moment air teacher force education river capital island mountain bridge language"
)
_WORDS = _TEXT.split()


class SyntheticEncoder:
    """A vector drawn from a seed that is the text's checksum: equal texts are near, all others are not."""

    def __init__(self, dimension: int) -> None:
        self.spec = EncoderSpec(SYNTHETIC_ENCODER, "", "", dimension, max_length_tokens=_PASSAGE_WORDS, backend="numpy")

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        return self._encode(texts)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        seeds = [crc32(text.encode()) for text in texts]
        drawn = [np.random.default_rng(seed).standard_normal(self.spec.dimension, np.float32) for seed in seeds]
        return normalised(np.stack(drawn) if drawn else np.zeros((0, self.spec.dimension), np.float32))


def write_synthetic_index(
    out: Path,
    *,
    num_passages: int,
    dimension: int,
    kind: str = "flat",
    queries_by: EncoderSpec | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """The manifest of an index folder written by `build_index` from synthetic passages; the same each time.

    With `queries_by` the manifest names that encoder, so that a service encodes queries with it: what it finds then
    means nothing, what it costs is what it would cost. Raises IndexFolderError.
    """
    with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=".synthetic-") as folder:
        corpus = Path(folder) / "corpus.jsonl"
        write_synthetic_corpus(corpus, num_passages)
        build_index(corpus, out, SyntheticEncoder(dimension), kind=kind, progress=progress)
    manifest = read_manifest(out)
    if queries_by is not None and manifest.dense is not None:
        # Its canaries were found by the synthetic encoder.
        manifest = replace(manifest, dense=replace(manifest.dense, encoder=queries_by, canaries=()))
        write_manifest(manifest, out)
    return manifest


def write_synthetic_corpus(path: Path, num_passages: int) -> None:
    """Passages of a hundred random words, the same each time."""
    with path.open("wb") as file:
        file.writelines(orjson.dumps(p, option=orjson.OPT_APPEND_NEWLINE) for p in _passages(num_passages))


def synthetic_queries(num_queries: int, *, seed: int = 1) -> list[str]:
    """Different questions of about ten words."""
    words = random.Random(seed)
    return [f"{' '.join(words.choices(_WORDS, k=_QUERY_WORDS - 1))} {number}?" for number in range(num_queries)]


def _passages(num_passages: int) -> Iterator[Passage]:
    words = random.Random(0)
    for row in range(num_passages):
        yield Passage(f"{row}", f"Passage {row}", " ".join(words.choices(_WORDS, k=_PASSAGE_WORDS)))
