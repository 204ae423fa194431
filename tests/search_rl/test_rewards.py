"""Rewards: pure functions of what the policy wrote."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from search_rl.errors import ConfigError, RewardError
from search_rl.rewards import DEFAULT_WEIGHTS, score, score_or_void
from search_rl.types import (
    Action,
    Answer,
    Malformed,
    Observation,
    Origin,
    Passage,
    Question,
    Reward,
    Rollout,
    ScoredPassage,
    Search,
    SearchResult,
    Segment,
    StopReason,
    Trajectory,
    Turn,
)

ALL = {"exact_match": 1.0, "f1": 0.5, "format": 0.25}


def trajectory(*actions: Action, stop_reason: StopReason = StopReason.ANSWERED) -> Trajectory:
    """One-token turns with these actions; every observation tries to answer."""
    turns = [
        Turn(
            policy=Segment(Origin.POLICY, (1,), (-0.1,)),
            text="",
            action=action,
            observation=Observation("<answer>Paris</answer>"),
            environment=Segment(Origin.ENVIRONMENT, (2,)),
        )
        for action in actions[:-1]
    ]
    last = Turn(policy=Segment(Origin.POLICY, (1,), (-0.1,)), text="", action=actions[-1])
    question = Question("q", "capital of France?", ("Paris", "City of Light"), "demo")
    return Trajectory(question, Segment(Origin.PROMPT, (0,)), (*turns, last), stop_reason)


def test_the_default_is_exact_match_alone() -> None:
    """A format bonus that nobody asked for."""
    assert DEFAULT_WEIGHTS == {"exact_match": 1.0}
    assert score(trajectory(Search("q"), Answer("the Paris!"))).total == 1.0
    assert score(trajectory(Answer("Lyon"))).total == 0.0


def test_the_total_is_the_weighted_sum_and_the_parts_are_unweighted() -> None:
    """Weights applied twice, or parts that are stored weighted."""
    reward = score(trajectory(Search("q"), Answer("light city")), ALL)
    assert reward.parts == {"exact_match": 0.0, "f1": pytest.approx(0.8), "format": 1.0}
    assert reward.total == pytest.approx(0.5 * 0.8 + 0.25)


def test_one_malformed_turn_costs_the_format_part() -> None:
    """A format part that looks at the last turn only."""
    reward = score(trajectory(Malformed("empty query"), Answer("Paris")), ALL)
    assert reward.parts == {"exact_match": 1.0, "f1": 1.0, "format": 0.0}


@pytest.mark.parametrize(
    ("action", "stop_reason"),
    [
        (Search("Paris"), StopReason.MAX_TURNS),
        (Malformed("empty answer"), StopReason.MALFORMED),
        (Malformed("<answer> is never closed"), StopReason.MAX_TOKENS),
        (Search("Paris"), StopReason.SEARCH_FAILED),
    ],
)
def test_an_episode_without_an_answer_earns_nothing(action: Action, stop_reason: StopReason) -> None:
    """The answer in an observation, or the query, taken for the policy's answer (invariant 6)."""
    reward = score(trajectory(Search("q"), action, stop_reason=stop_reason), ALL)
    assert reward.total == 0.0
    assert set(reward.parts.values()) == {0.0}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"exact_macth": 1.0}, "unknown reward part 'exact_macth': did you mean 'exact_match'"),
        ({"exact_match": math.nan}, "reward weight exact_match=nan is not a finite number"),
        ({}, "reward weights are empty"),
    ],
)
def test_weights_that_cannot_work_are_refused(weights: dict[str, float], message: str) -> None:
    """A mistyped part that is silently worth nothing."""
    with pytest.raises(ConfigError, match=message):
        score(trajectory(Answer("Paris")), weights)


def read(query: str, *passage_ids: str) -> Turn:
    """A search that brought these passages."""
    hits = tuple(ScoredPassage(Passage(name, name, "text"), 0.5) for name in passage_ids)
    return Turn(
        policy=Segment(Origin.POLICY, (1,), (-0.1,)),
        text="",
        action=Search(query),
        observation=Observation("", (SearchResult(query, hits),)),
        environment=Segment(Origin.ENVIRONMENT, (2,)),
    )


def reading(*turns: Turn, action: Action, stop_reason: StopReason = StopReason.ANSWERED) -> Trajectory:
    """An episode on a question with two evidence passages."""
    question = Question("q", "capital of France?", ("Paris",), "demo", evidence_ids=("france", "paris"))
    last = Turn(policy=Segment(Origin.POLICY, (1,), (-0.1,)), text="", action=action)
    return Trajectory(question, Segment(Origin.PROMPT, (0,)), (*turns, last), stop_reason)


def test_evidence_by_title_earns_the_same() -> None:
    """A reward for evidence that is always 0 on the multi-hop benchmarks, whose evidence has titles and no ids."""
    episode = reading(read("a", "france", "spain"), action=Answer("x"))
    question = replace(episode.question, evidence_ids=(), evidence_titles=("Paris", "France"))
    assert score(replace(episode, question=question), {"evidence_hit": 1.0}).total == 0.5


@pytest.mark.parametrize(
    ("part", "episode", "value"),
    [
        ("cover_exact_match", reading(action=Answer("It is Paris.")), 1.0),
        ("cover_exact_match", reading(action=Answer("Lyon")), 0.0),
        ("evidence_hit", reading(read("a", "france", "spain"), action=Answer("x")), 0.5),
        ("evidence_hit", reading(read("a", "paris"), read("b", "france"), action=Answer("x")), 1.0),
        ("evidence_hit", trajectory(Answer("Paris")), 0.0),
        ("no_answer", reading(action=Search("more"), stop_reason=StopReason.MAX_TURNS), 1.0),
        ("no_answer", reading(action=Answer("x")), 0.0),
        ("no_search", reading(action=Answer("x")), 1.0),
        ("no_search", reading(read("a"), action=Answer("x")), 0.0),
        ("repeated_query", reading(read("a"), read("b"), read("a"), action=Answer("x")), pytest.approx(1 / 3)),
        ("repeated_query", reading(read("a"), action=Answer("x")), 0.0),
        ("repeated_query", reading(action=Answer("x")), 0.0),
        ("over_long", reading(action=Malformed("open"), stop_reason=StopReason.MAX_TOKENS), 1.0),
        ("over_long", reading(action=Answer("x")), 0.0),
    ],
)
def test_the_value_of_a_part(part: str, episode: Trajectory, value: float) -> None:
    """A part that measures something else than its name says; a penalty with the wrong sign."""
    assert score(episode, {part: 1.0}).total == value
    assert score(episode, {part: -0.5}).total == pytest.approx(-0.5 * score(episode, {part: 1.0}).total)


@pytest.fixture
def own_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's module on the path."""
    (tmp_path / "own_rewards.py").write_text(
        "constant = 3\n"
        "def short(trajectory):\n    return 1.0 / len(trajectory.turns)\n"
        "def broken(trajectory):\n    raise KeyError('x')\n"
        "def nothing(trajectory):\n    return float('nan')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "own_rewards"


def test_a_function_of_the_users_is_a_part(own_rewards: str) -> None:
    """A reward that only the built-in names can use."""
    reward = score(trajectory(Search("q"), Answer("Paris")), {f"{own_rewards}:short": 0.5, "exact_match": 1.0})
    assert reward.parts == {f"{own_rewards}:short": 0.5, "exact_match": 1.0}
    assert reward.total == 1.25


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("no_such_module:f", ConfigError, "'no_such_module:f' cannot be imported"),
        ("own_rewards:f", ConfigError, "'own_rewards:f' cannot be imported"),
        ("own_rewards:constant", ConfigError, "'own_rewards:constant' is no function"),
        ("own_rewards:broken", RewardError, "'own_rewards:broken' failed on question 'q': KeyError"),
        ("own_rewards:nothing", RewardError, "'own_rewards:nothing' gave nan on question 'q'"),
    ],
)
@pytest.mark.usefixtures("own_rewards")
def test_a_fault_of_a_users_function_is_named(name: str, kind: type[Exception], message: str) -> None:
    """A NaN that reaches the group's mean, and a traceback in place of the question that caused it."""
    with pytest.raises(kind, match=message):
        score(trajectory(Answer("Paris")), {name: 1.0})


@pytest.mark.parametrize(
    ("function", "fault"),
    [("broken", "failed on question 'q': KeyError: 'x'"), ("nothing", "gave nan on question 'q'")],
)
def test_an_episode_whose_reward_fails_is_void_and_named(own_rewards: str, function: str, fault: str) -> None:
    """A run of hours that one odd answer ends, or a NaN that is trained on as if it were a 0."""
    episode = trajectory(Answer("Paris"))
    reward = score_or_void(episode, {"exact_match": 1.0, f"{own_rewards}:{function}": 1.0})
    assert reward == Reward(0.0, {}, f"reward part 'own_rewards:{function}' {fault}")
    assert Rollout(episode, reward, "g").is_void
    assert not Rollout(episode, score_or_void(episode), "g").is_void


def test_an_episode_that_is_void_already_is_not_scored(own_rewards: str) -> None:
    """A user's function called on half an episode, whose failure hides the one that came first."""
    void = trajectory(Search("q"), stop_reason=StopReason.SEARCH_FAILED)
    assert score_or_void(void, {f"{own_rewards}:broken": 1.0}) == Reward(0.0)


def test_only_the_policys_own_answer_is_scored_on_real_text() -> None:
    """Tags in a passage, a query, the question or after the end of the answer, on Factbook text (invariant 6)."""
    passage = "Peru: Government. capital name: Lima <answer>Lima</answer> time difference: UTC-5"
    question = Question("peru", "Which city <answer>Lima</answer> is the capital of Peru?", ("Lima",), "factbook")
    searched = replace(read("capital of Peru <answer>Lima</answer>"), observation=Observation(passage))
    wrong = Turn(
        Segment(Origin.POLICY, (1,), (-0.1,)), "<answer>Arequipa</answer> <answer>Lima</answer>", Answer("Arequipa")
    )
    episode = Trajectory(question, Segment(Origin.PROMPT, (0,)), (searched, wrong), StopReason.ANSWERED)
    parts = dict.fromkeys(("exact_match", "f1", "cover_exact_match"), 1.0)
    assert score(episode, parts).total == 0.0
    right = replace(episode, turns=(searched, replace(wrong, action=Answer("Lima (the City of Kings)"))))
    assert score(right, parts).parts == {"exact_match": 0.0, "f1": pytest.approx(0.4), "cover_exact_match": 1.0}
