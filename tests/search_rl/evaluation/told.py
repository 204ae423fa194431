"""Episodes as they are told: what was asked, searched, read and answered; the tokens are numbers without a meaning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from search_rl import records
from search_rl.evaluation.episode_file import stored_rollouts
from search_rl.evaluation.measured import measure
from search_rl.evaluation.outcomes import Outcome, outcome_of
from search_rl.evaluation.protocol import MeasuringProtocol
from search_rl.evaluation.report_files import write_result
from search_rl.evaluation.runner import Evaluation, reward_by
from search_rl.profiles import SEARCH_R1, Profile
from search_rl.types import (
    Action,
    Answer,
    Malformed,
    Observation,
    Origin,
    Question,
    Rollout,
    ScoredPassage,
    Search,
    SearchResult,
    Segment,
    StopReason,
    Trajectory,
    Turn,
)

RULES: Mapping[str, Any] = {"limits": {"top_k": 3}, "sampling": {"temperature": 0.0, "seed": None}}


def ask(text: str, *golds: str, dataset: str = "nq", kind: str = "", evidence: Sequence[str] = ()) -> Question:
    """A question whose id is its text."""
    return Question(text, text, golds, dataset, kind, tuple(evidence))


def told(
    question: Question,
    answer: str | None,
    *queries: str,
    passages: Sequence[ScoredPassage] = (),
    stop_reason: StopReason | None = None,
) -> Trajectory:
    """An episode that searches so, finds the passages each time and answers so; without an answer it ends malformed."""
    turns = [_turn(Search(query), Observation("read", (SearchResult(query, tuple(passages)),))) for query in queries]
    turns.append(_turn(Answer(answer) if answer is not None else Malformed("no search and no answer"), None))
    reason = stop_reason or (StopReason.MALFORMED if answer is None else StopReason.ANSWERED)
    return Trajectory(question, Segment(Origin.PROMPT, (1, 2, 3)), tuple(turns), reason)


def outcomes(trajectories: Sequence[Trajectory], profile: Profile = SEARCH_R1) -> list[Outcome]:
    """What became of them."""
    return [outcome_of(trajectory, profile) for trajectory in trajectories]


def protocol(**rules: Any) -> MeasuringProtocol:
    """The rules of these tests with some others."""
    return MeasuringProtocol({"model": "a model"}, {**RULES, **rules}, {"concurrency": 3})


def write(
    folder: Path,
    trajectories: Sequence[Trajectory],
    *,
    rules: MeasuringProtocol | None = None,
    profile: Profile = SEARCH_R1,
) -> Path:
    """The folder of a finished evaluation."""
    folder.mkdir(parents=True)
    rollouts = tuple(Rollout(it, reward_by(profile, it), it.question.key) for it in trajectories)
    records.append(folder / "episodes.jsonl", rollouts)
    measured = rules or protocol()
    measured.write(folder)
    stored = stored_rollouts(folder / "episodes.jsonl")
    figures = measure(stored, profile=profile, top_k=3)
    write_result(folder, Evaluation(stored, 12.0, profile), measured, figures, system={"system": "agent"})
    return folder


def rows(path: Path) -> list[dict[str, Any]]:
    """A file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def _turn(action: Action, observation: Observation | None) -> Turn:
    environment = None if observation is None else Segment(Origin.ENVIRONMENT, (7, 8))
    policy = Segment(Origin.POLICY, (4, 5), (-0.5, -0.5))
    return Turn(policy, "text", action, observation, environment, generate_seconds=0.5, search_seconds=0.25)
