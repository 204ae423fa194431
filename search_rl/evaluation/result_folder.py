"""The folder of one evaluation: what it was started with, its episodes, and its summary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from search_rl.errors import ConfigError, DataError
from search_rl.evaluation.assemble import Setup
from search_rl.evaluation.episode_file import stored_rollouts
from search_rl.evaluation.measured import FailedQuestion, Measured, measured_to_json
from search_rl.evaluation.runner import Evaluation
from search_rl.evaluation.summary import Summary, summary_to_json
from search_rl.evaluation.systems import System
from search_rl.profiles import SEARCH_R1, profile_named

EPISODES = "episodes.jsonl"
SUMMARY = "summary.json"
QUESTIONS = "questions.jsonl"
AUDIT = "audit.json"
SETTINGS = "settings.json"
FAILED = "failed.jsonl"
RETRIEVER = "retriever.json"
SUITE = "suite.json"

_EARLIER_SETTINGS = {
    "profile": SEARCH_R1.name,
    "protocol": "tags",
    "max_queries": 1,
    "keep_reasoning": True,
    "system": "agent",
}
"""What evaluations went by before these could be chosen."""


def settings_of(setup: Setup, system: System, corpus: Path | None) -> dict[str, Any]:
    """What must be equal for two runs to be parts of one evaluation."""
    return {
        **setup.settings,
        "system": system.name,
        "wording": system.wording.instructions if system.wording else None,
        "corpus": str(corpus.resolve()) if corpus and system.needs_corpus else None,
    }


def check_claim(folder: Path, settings: Mapping[str, Any], *, is_resumed: bool) -> None:
    """Raise ConfigError for a folder that holds another evaluation, or this one while not `is_resumed`."""
    path = folder / SETTINGS
    if not path.exists():
        return
    if not is_resumed:
        raise ConfigError(f"{folder} holds an evaluation already: --resume goes on with it, or give another --out")
    try:
        stored = {**_EARLIER_SETTINGS, **json.loads(path.read_text(encoding="utf-8"))}
    except (ValueError, TypeError) as error:
        raise ConfigError(f"cannot resume {folder}: {SETTINGS} is damaged ({error}); give another --out") from error
    for name in {**settings, **stored}:
        if name != "budgets" and stored.get(name) != settings.get(name):
            raise ConfigError(
                f"cannot resume {folder}: its {name} is {stored.get(name)!r}, now it is {settings.get(name)!r}; "
                "give another --out"
            )


def claim(folder: Path, settings: Mapping[str, Any]) -> None:
    """Make the folder this evaluation's own; until it is done again it has no summary and no audit."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SETTINGS, settings)
    for name in (SUMMARY, AUDIT):
        (folder / name).unlink(missing_ok=True)


def store(folder: Path, summary: Summary, measured: Measured, *, system: Mapping[str, Any]) -> None:
    """Write the summary with what says who was measured, and failed questions one a line where there are some."""
    document = {**summary_to_json(summary), **system, **measured_to_json(measured)}
    write_json(folder / SUMMARY, document)
    write_failed(folder / FAILED, measured.failed)


def write_failed(path: Path, failed: Sequence[FailedQuestion]) -> None:
    """The questions that failed, one a line; no file where none did."""
    if not failed:
        path.unlink(missing_ok=True)
        return
    path.write_text("".join(json.dumps(asdict(question)) + "\n" for question in failed), encoding="utf-8")


def load_evaluation(folder: Path) -> Evaluation:
    """The evaluation that is stored in `folder`, its rollouts read when they are asked for.

    Raises DataError where none is whole.
    """
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        rollouts = stored_rollouts(folder / EPISODES, asked_keys(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} holds no finished evaluation: {error}") from error
    profile = profile_named(summary.get("profile", SEARCH_R1.name))
    return Evaluation(rollouts, seconds=summary["seconds"], profile=profile)


def asked_keys(folder: Path) -> list[str]:
    """The keys of the questions that the result is about, in their order; empty for results from before there was a
    row a question. The episodes may hold more: those of questions that a resumed evaluation asked no longer.
    """
    path = folder / QUESTIONS
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["id"] for line in lines]


def write_json(path: Path, document: Any) -> None:
    """Write the document whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    part.replace(path)
