"""A stored rollout file in place of a system under test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from search_rl import records
from search_rl.errors import DataError, RequestError
from search_rl.evaluation.episode_file import record_at
from search_rl.types import Question, Trajectory


@dataclass(frozen=True, slots=True)
class StoredAnswers:
    """Answers questions with the episodes of a file, which stays on disk."""

    path: Path
    offsets_bytes: Mapping[str, int]

    async def ask(self, question: Question) -> Trajectory:
        """The stored episode, under the accepted answers that the question has now.

        Raises RequestError for a question that the file does not answer as it is worded.
        """
        offset_bytes = self.offsets_bytes.get(question.key)
        if offset_bytes is None:
            raise RequestError(f"{self.path} has no rollout of question {question.key}")
        with self.path.open("rb") as file:
            trajectory = record_at(file, offset_bytes, self.path).rollout.trajectory
        if trajectory.question.text != question.text:
            raise RequestError(f"{self.path} answers {question.key} in other words: {trajectory.question.text!r}")
        return replace(trajectory, question=question)


def stored_answers(path: Path) -> StoredAnswers:
    """The answers in a file; an episode that failed counts only where no other one answers its question.

    Raises DataError for a question with two episodes, as a training run's files hold them.
    """
    if not path.is_file():
        raise DataError(f"no rollout file at {path}")
    offsets: dict[str, int] = {}
    answered: set[str] = set()
    for offset_bytes, record in records.read_with_offsets(path):
        trajectory = record.rollout.trajectory
        key = trajectory.question.key
        if key in answered and not trajectory.is_void:
            raise DataError(f"{path} holds more than one rollout of question {key}: an evaluation takes one a question")
        if key not in answered:
            offsets[key] = offset_bytes
        if not trajectory.is_void:
            answered.add(key)
    return StoredAnswers(path, offsets)


def questions_in(path: Path) -> tuple[Question, ...]:
    """The questions that a rollout file answers, each once, in order. Raises DataError for a file without any."""
    if not path.is_file():
        raise DataError(f"no rollout file at {path}")
    questions = {
        record.rollout.trajectory.question.key: record.rollout.trajectory.question for record in records.read(path)
    }
    if not questions:
        raise DataError(f"{path} holds no rollouts")
    return tuple(questions.values())
