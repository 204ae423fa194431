"""What the agent loops hand to the trainer beside tokens: the records of a step, and how its searches went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from search_rl.records import row_to_record
from search_rl.search import SearchCounts
from search_rl.types import Rollout


@dataclass(frozen=True, slots=True)
class StepEpisodes:
    """The rollouts of one step in the order of the batch; `lost` names retrievers that were away for too long."""

    rollouts: tuple[Rollout, ...]
    searches: SearchCounts = field(default_factory=SearchCounts)
    lost: str = ""

    def __add__(self, other: StepEpisodes) -> StepEpisodes:
        """Both, where a step comes in parts."""
        return StepEpisodes(self.rollouts + other.rollouts, self.searches + other.searches, self.lost or other.lost)

    @property
    def metrics(self) -> dict[str, float]:
        """How searches were answered; a share is of all searches asked for."""
        asked, counts = max(self.searches.searches, 1), self.searches
        return {
            "search/searches": counts.searches,
            "search/cached_share": counts.cached / asked,
            "search/shared_share": counts.shared / asked,
            "search/requests": counts.requests,
            "search/failed_requests": counts.failed_requests,
        }


def step_episodes(extra_fields: Sequence[Mapping[str, Any]]) -> StepEpisodes:
    """The episodes from the `extra_fields` that `agent_loop_output` wrote."""
    rollouts = tuple(row_to_record(orjson.loads(fields["rollout"])).rollout for fields in extra_fields)
    seen = [fields["retriever"] for fields in extra_fields]
    searches = sum((SearchCounts(**part["counts"]) for part in seen), SearchCounts())
    return StepEpisodes(rollouts, searches, next((part["lost"] for part in seen if part["lost"]), ""))
