"""A finished evaluation as it lies on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from search_rl import records
from search_rl.errors import DataError
from search_rl.evaluation.outcomes import Outcome, outcome_of
from search_rl.evaluation.protocol import MeasuringProtocol, read_protocol
from search_rl.evaluation.result_folder import EPISODES, SUMMARY, asked_keys
from search_rl.evaluation.summary import Summary, summarise_outcomes
from search_rl.profiles import SEARCH_R1, Profile, profile_named
from search_rl.types import Trajectory

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured, by whom it was scored and how; `protocol` is None for results from before protocol files."""

    folder: Path
    outcomes: tuple[Outcome, ...]
    seconds: float
    profile: Profile
    protocol: MeasuringProtocol | None

    @property
    def name(self) -> str:
        """The folder as people know it: its last two parts."""
        return "/".join(self.folder.resolve().parts[-2:])

    @property
    def budgets(self) -> str | None:
        """The preset of the budgets and what departs from it, None where nobody wrote it down."""
        return self.protocol.circumstances.get("budgets") if self.protocol else None

    def summary(self) -> Summary:
        """The figures."""
        return summarise_outcomes(self.outcomes, seconds=self.seconds, profile=self.profile)


def load_result(folder: Path, *, profile: Profile | None = None) -> Result:
    """The result in `folder`, scored anew by the profile, or by its own. One episode is in memory at a time.

    Raises DataError where no evaluation was finished.
    """
    result, _ = load_result_with(folder, lambda trajectory, outcome: None, profile=profile)
    return result


def load_result_with(
    folder: Path, make: Callable[[Trajectory, Outcome], T], *, profile: Profile | None = None
) -> tuple[Result, tuple[T, ...]]:
    """See `load_result`; beside it what `make` says of each episode, in the order of the outcomes."""
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        scorer = profile or profile_named(summary.get("profile", SEARCH_R1.name))
        found: dict[str, tuple[Outcome, T]] = {}
        for record in records.read(folder / EPISODES):
            outcome = outcome_of(record.rollout.trajectory, scorer)
            found[outcome.question.key] = outcome, make(record.rollout.trajectory, outcome)
        asked = [found[key] for key in asked_keys(folder) or found if key in found]
        seconds = float(summary["seconds"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{folder} holds no finished evaluation: {error}") from error
    if not asked:
        raise DataError(f"{folder} holds no finished evaluation: {EPISODES} has no episodes")
    outcomes = tuple(outcome for outcome, _ in asked)
    return Result(folder, outcomes, seconds, scorer, read_protocol(folder)), tuple(made for _, made in asked)
