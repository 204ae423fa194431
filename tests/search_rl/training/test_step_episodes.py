"""What the agent loops tell the trainer beside tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from search_rl.records import rollout_to_row
from search_rl.training.step_episodes import step_episodes
from search_rl.types import Answer, Origin, Question, Reward, Rollout, Segment, StopReason, Trajectory, Turn


def fields(reward: float, *, lost: str = "", **counts: int) -> dict[str, Any]:
    """The extra fields of one episode."""
    turn = Turn(Segment(Origin.POLICY, (1,), (-1.0,)), "", Answer("x"))
    question = Question("1", "?", ("x",), "toy")
    trajectory = Trajectory(question, Segment(Origin.PROMPT, (9,)), (turn,), StopReason.ANSWERED)
    row = rollout_to_row(Rollout(trajectory, Reward(reward), "g"), {})
    return {"rollout": json.dumps(row), "retriever": {"lost": lost, "counts": counts}}


def test_counts_are_summed_and_the_order_is_kept() -> None:
    """Would catch a share of one worker's searches alone, and rewards that belong to a neighbour."""
    episodes = step_episodes(
        [
            fields(1.0, searches=6, cached=3, shared=1, requests=2),
            fields(0.0),
            fields(0.5, searches=4, cached=0, shared=2, requests=3, failed_requests=1),
        ]
    )
    assert [rollout.reward.total for rollout in episodes.rollouts] == [1.0, 0.0, 0.5]
    assert episodes.metrics == {
        "search/searches": 10,
        "search/cached_share": pytest.approx(0.3),
        "search/shared_share": pytest.approx(0.3),
        "search/requests": 5,
        "search/failed_requests": 1,
    }
    assert not episodes.lost


def test_one_worker_that_lost_its_retriever_is_enough() -> None:
    """Would catch a step that trains on after the limit because the other workers' episodes had no search."""
    assert step_episodes([fields(1.0), fields(0.0, lost="no retriever answers: http://a")]).lost.endswith("http://a")


def test_step_without_searches_has_shares() -> None:
    """Would catch a division by zero."""
    assert step_episodes([fields(1.0)]).metrics["search/cached_share"] == 0.0
