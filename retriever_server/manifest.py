"""What an index folder says about itself, and the refusal of folders that are not what they say."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from retriever_server.digests import FileRecord, record_file, sample_sha256
from retriever_server.encoders import EncoderSpec
from retriever_server.errors import IndexFolderError
from retriever_server.rows import FaultKind

PartName = Literal["dense", "bm25"]
MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 3

Spec = TypeVar("Spec", EncoderSpec, "TermSpec")


@dataclass(frozen=True, slots=True)
class Canary:
    """A query and what the freshly built index answered to it: another model or corpus answers otherwise."""

    query: str
    passage_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DensePart:
    """The make of `index.faiss`: `kind` is what was asked for or chosen, `kind_reason` why, `factory` FAISS's words."""

    kind: str
    kind_reason: str
    factory: str
    metric: Literal["inner_product"]
    is_normalised: Literal[True]
    encoder: EncoderSpec
    canaries: tuple[Canary, ...]


@dataclass(frozen=True, slots=True)
class TermSpec:
    """All that decides the terms of a text, for passages and queries alike, and their weights.

    `stemmer` is a Snowball algorithm, `k1` and `b` are BM25's.
    """

    token_pattern: str
    stopwords: tuple[str, ...]
    stemmer: str
    method: str
    k1: float
    b: float


@dataclass(frozen=True, slots=True)
class BM25Part:
    """The make of the `bm25` folder."""

    terms: TermSpec
    canaries: tuple[Canary, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The make of an index, which has a dense part, a BM25 part, or both.

    `corpus_sha256` is of the stored passages, `num_skipped` of the rows that its corpus had beside them, `files` has
    a record of each file by its path in the folder.
    """

    format_version: int
    num_passages: int
    corpus_sha256: str
    num_skipped: dict[FaultKind, int]
    files: dict[str, FileRecord]
    versions: dict[str, str]
    dense: DensePart | None
    bm25: BM25Part | None

    @property
    def parts(self) -> tuple[PartName, ...]:
        """What there is to search with."""
        found: dict[PartName, object] = {"dense": self.dense, "bm25": self.bm25}
        return tuple(name for name, part in found.items() if part is not None)

    @property
    def num_bytes(self) -> int:
        """Of all files together."""
        return sum(record.num_bytes for record in self.files.values())

    @property
    def canaries(self) -> tuple[Canary, ...]:
        """Of the first part; the queries are the same for both."""
        return next((part.canaries for part in (self.dense, self.bm25) if part is not None), ())


def differences(found: Spec, expected: Spec) -> str:
    """What differs, field by field, of what a difference matters for; empty when nothing does."""
    return ", ".join(
        f"{field.name} was {getattr(expected, field.name)!r} and is {getattr(found, field.name)!r}"
        for field in fields(expected)
        if field.compare and getattr(expected, field.name) != getattr(found, field.name)
    )


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write the manifest into an index folder."""
    (folder / MANIFEST_FILE).write_text(manifest_json(manifest), encoding="utf-8")


def manifest_json(manifest: Manifest) -> str:
    """The manifest as it stands in its file."""
    return orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index folder whose files have the sizes and samples it names. Raises IndexFolderError."""
    try:
        text = (folder / MANIFEST_FILE).read_bytes()
    except OSError as error:
        raise IndexFolderError(f"{folder}: not an index folder ({MANIFEST_FILE}: {error.strerror})") from error
    _check_format_version(text, folder)
    try:
        manifest = TypeAdapter(Manifest).validate_json(text)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        found = f", not {fault['input']!r}" if fault["type"] == "literal_error" else ""
        raise IndexFolderError(
            f"{folder}: bad {MANIFEST_FILE} ({where}: {fault['msg']}{found}); build it again"
        ) from error
    for name, record in manifest.files.items():
        _check_file(folder / name, record)
    return manifest


def check_digests(manifest: Manifest, folder: Path) -> None:
    """Read each file to its end. Raises IndexFolderError for the first that is not what the manifest says."""
    for name, record in manifest.files.items():
        if record_file(folder / name) != record:
            raise _foreign(folder / name)


def _check_format_version(text: bytes, folder: Path) -> None:
    """First, because another version may have other fields."""
    try:
        manifest = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise IndexFolderError(f"{folder}: {MANIFEST_FILE} is not JSON ({error}); build it again") from error
    found = manifest.get("format_version") if isinstance(manifest, dict) else None
    if found != FORMAT_VERSION:
        raise IndexFolderError(
            f"{folder}: index format is {found!r}, this program reads {FORMAT_VERSION}; build it again"
        )


def _check_file(path: Path, record: FileRecord) -> None:
    found = path.stat().st_size if path.is_file() else None
    if found != record.num_bytes:
        state = "missing" if found is None else f"{found:,} bytes long"
        raise IndexFolderError(
            f"{path}: {state}, but the manifest says {record.num_bytes:,} bytes; copy it whole or build it again"
        )
    if sample_sha256(path) != record.sample_sha256:
        raise _foreign(path)


def _foreign(path: Path) -> IndexFolderError:
    return IndexFolderError(f"{path}: not the file that the manifest describes; copy it again or build it again")
