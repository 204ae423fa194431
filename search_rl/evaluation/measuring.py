"""How the questions of one evaluation are about to be asked, as its protocol file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from search_rl.errors import ConfigError
from search_rl.evaluation import protocol as protocols
from search_rl.evaluation.assemble import Setup
from search_rl.evaluation.protocol import Difference, MeasuringProtocol, read_protocol
from search_rl.evaluation.systems import Given, Parts, Retriever, System, searcher_of
from search_rl.search import SearchClient
from search_rl.types import Question


async def measuring_protocol(
    system: System, setup: Setup, parts: Parts, questions: Sequence[Question], *, weights: str | None
) -> MeasuringProtocol:
    """The protocol of a system on these questions; `weights` is the digest of the checkpoint.

    Raises RetrieverError when the retriever does not answer.
    """
    versions: dict[str, Any] = {**protocols.installed_versions(is_engine_here=setup.endpoint is None)}
    if setup.endpoint:
        versions["served"] = await protocols.served_version(setup.endpoint)
    return MeasuringProtocol(
        system={
            "system": system.name,
            "model": str(Path(setup.model).resolve()) if Path(setup.model).exists() else setup.model,
            "weights_sha256": weights,
            "endpoint": setup.endpoint,
            "served_model": setup.served_model,
        },
        rules={
            "prompt": protocols.prompt_rules(system.wording or parts.protocol, parts.codec),
            "limits": asdict(system.limits(setup.limits)),
            "sampling": asdict(setup.sampling),
            "api": setup.api,
            "scorer": protocols.scorer_rules(setup.profile),
            "datasets": protocols.dataset_rules(questions),
            "retriever": await _retriever_rules(system, parts, questions),
            "versions": versions,
        },
        circumstances=protocols.circumstances(
            concurrency=setup.concurrency, retriever=setup.retriever.url, budgets=setup.budgets_label
        ),
    )


def rollouts_protocol(path: Path, setup: Setup, questions: Sequence[Question]) -> MeasuringProtocol:
    """The protocol of a stored rollout file, which does not say how it was sampled."""
    return MeasuringProtocol(
        system={"system": "rollouts", "rollouts": str(path.resolve())},
        rules={"scorer": protocols.scorer_rules(setup.profile), "datasets": protocols.dataset_rules(questions)},
        circumstances=protocols.circumstances(),
    )


def check_protocol(folder: Path, protocol: MeasuringProtocol) -> None:
    """Raise ConfigError that names the first difference where the folder's episodes were not measured alike; on more or
    fewer questions they may have been.
    """
    stored = read_protocol(folder)
    if stored is not None:
        differences = stored.differences(protocol)
        # Other questions are probed otherwise.
        is_asked_anew = any(found.name.startswith("datasets.") for found in differences)
        free = ("datasets.", "retriever.num_probes", "retriever.probes_") if is_asked_anew else ()
        unlike = [found for found in differences if not found.name.startswith(free)]
        unlike += _system_differences(stored.system, protocol.system)
        if unlike:
            raise ConfigError(f"cannot resume {folder}: {unlike[0]}; give another --out")


def _system_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    names = sorted(first.keys() | second.keys())
    return [
        Difference(name, first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)
    ]


async def _retriever_rules(system: System, parts: Parts, questions: Sequence[Question]) -> dict[str, Any]:
    """Who answers searches and what is handed over."""
    rules: dict[str, Any] = {"answered_by": str(system.retriever), "given": str(system.given)}
    if system.given is Given.GOLD and parts.corpus is not None:
        rules["evidence_sha256"] = protocols.passages_sha256(parts.corpus.evidence_passages)
        if parts.corpus.num_titles:
            rules["articles_named"] = parts.corpus.num_titles
            rules["articles_missing"] = parts.corpus.num_titles_missing
    if system.retriever is Retriever.NONE:
        return rules
    searcher, top_k = searcher_of(system, parts), parts.limits.top_k
    is_served = system.retriever is Retriever.SERVED
    info = await searcher.info() if is_served and isinstance(searcher, SearchClient) else None
    return {**rules, **await protocols.retriever_rules(searcher, questions, top_k=top_k, info=info)}
