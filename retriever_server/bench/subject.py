"""What is measured: an index folder, given or made for the run, and the encoder of its queries."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from retriever_server.bench.synthetic import SYNTHETIC_ENCODER, SyntheticEncoder, write_synthetic_index
from retriever_server.encoders import DEFAULT_ENCODER, Encoder, EncoderSpec, SentenceEncoder
from retriever_server.errors import BenchError
from retriever_server.manifest import Manifest, read_manifest

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a synthetic index; `dimension` None is the encoder's, or 768 without one."""

    num_passages: int
    dimension: int | None
    kind: str


@dataclass(frozen=True, slots=True)
class Subject:
    """`is_encoding` tells whether a server is to encode queries with the encoder, or to look vectors up."""

    folder: Path
    manifest: Manifest
    encoder: Encoder
    is_encoding: bool


@contextmanager
def opened_subject(
    folder: Path | None, shape: Shape, *, is_encoding: bool, progress: Progress | None = None
) -> Iterator[Subject]:
    """The folder as it is, or a synthetic index that is gone afterwards.

    Raises BenchError, IndexFolderError, EncoderError.
    """
    if folder is not None:
        yield _given(folder, is_encoding=is_encoding)
        return
    with tempfile.TemporaryDirectory(prefix="search-rl-bench-") as scratch:
        yield make_subject(Path(scratch) / "index", shape, is_encoding=is_encoding, progress=progress)


def make_subject(out: Path, shape: Shape, *, is_encoding: bool, progress: Progress | None = None) -> Subject:
    """A synthetic index written to `out`, for the embedded encoder if queries are to be encoded."""
    encoder: Encoder
    if is_encoding:
        encoder = SentenceEncoder(DEFAULT_ENCODER)
        dimension = encoder.spec.dimension
        if shape.dimension not in (None, dimension):
            raise BenchError(f"--dimension {shape.dimension}: {DEFAULT_ENCODER} has {dimension}; leave the option out")
        queries_by: EncoderSpec | None = encoder.spec
    else:
        dimension = shape.dimension or 768
        encoder, queries_by = SyntheticEncoder(dimension), None
    manifest = write_synthetic_index(
        out,
        num_passages=shape.num_passages,
        dimension=dimension,
        kind=shape.kind,
        queries_by=queries_by,
        progress=progress,
    )
    return Subject(out, manifest, encoder, is_encoding)


def _given(folder: Path, *, is_encoding: bool) -> Subject:
    manifest = read_manifest(folder)
    if manifest.dense is None:
        raise BenchError(f"{folder}: has no dense part, which is what is measured; build it with one")
    spec = manifest.dense.encoder
    is_synthetic = spec.name == SYNTHETIC_ENCODER
    if is_synthetic and is_encoding:
        raise BenchError(f"{folder}: a synthetic index without an encoder; leave --encode out or make one with it")
    encoder = SyntheticEncoder(spec.dimension) if is_synthetic else SentenceEncoder(spec.name)
    return Subject(folder, manifest, encoder, is_encoding)
