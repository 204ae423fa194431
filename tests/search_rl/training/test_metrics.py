"""A step's metrics against hand-counted episodes, and their names against the table in the README."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from search_rl.search import SearchCounts
from search_rl.training.checks import Agreement
from search_rl.training.dev_set import DevResult, dev_metrics
from search_rl.training.metrics import reasoning_of, step_metrics
from search_rl.training.step_episodes import StepEpisodes
from search_rl.types import (
    Action,
    Answer,
    Malformed,
    Observation,
    Origin,
    Question,
    Reward,
    Rollout,
    Search,
    SearchResult,
    Segment,
    StopReason,
    Trajectory,
    Turn,
)
from tests.search_rl.conftest import hit

QUESTION = Question("1", "?", ("x",), "toy", evidence_ids=("P", "Q"))
STOP = ("</search>", "</answer>")
SEARCH_TEXT = "<think>I look it up.</think><search>q</search>"
ANSWER_TEXT = "so it is <answer>x</answer>"


def encode(text: str) -> tuple[int, ...]:
    """A token a character."""
    return tuple(map(ord, text))


def decode(token_ids: Sequence[int]) -> str:
    return "".join(map(chr, token_ids))


def turn(action: Action, text: str, *, logprob: float = -1.0, observed: bool = False, shortened: int = 0) -> Turn:
    token_ids = encode(text)
    policy = Segment(Origin.POLICY, token_ids, (logprob,) * len(token_ids))
    if not observed:
        return Turn(policy, text, action)
    results = (SearchResult(action.query, (hit("P", "text"),)),) if isinstance(action, Search) else ()
    observation = Observation("o", results, num_passages_shortened=shortened)
    return Turn(policy, text, action, observation, Segment(Origin.ENVIRONMENT, encode("obs")), search_seconds=2.0)


def found(shortened: int = 0) -> Turn:
    return turn(Search("q"), SEARCH_TEXT, observed=True, shortened=shortened)


def answered(text: str = ANSWER_TEXT, *, logprob: float = -1.0) -> Turn:
    return turn(Answer("x"), text, logprob=logprob)


def rollout(group: str, total: float, *turns: Turn, stop: StopReason = StopReason.ANSWERED) -> Rollout:
    prompt = Segment(Origin.PROMPT, (9, 9))
    return Rollout(Trajectory(QUESTION, prompt, turns, stop), Reward(total, {"exact_match": total}), group)


def metrics_of(*rollouts: Rollout, step_seconds: float = 10.0) -> dict[str, float]:
    return step_metrics(rollouts, stop=STOP, decode=decode, step_seconds=step_seconds)


def hand_counted_metrics() -> dict[str, float]:
    """Every metric of a step that has all kinds of episodes."""
    lost = turn(Malformed("no search and no answer"), "lost", observed=True)
    asked = turn(Search("q"), SEARCH_TEXT)
    return metrics_of(
        rollout("a", 1.0, found(), answered(logprob=-2.0)),
        rollout("a", 0.0, found(shortened=2), found(), asked, stop=StopReason.MAX_TURNS),
        rollout("b", 1.0, answered()),
        rollout("b", 0.0, asked, stop=StopReason.SEARCH_FAILED),
        rollout("c", 0.0, lost, found(), found(), found(), answered()),
        rollout("c", 0.0, answered(ANSWER_TEXT + "!!")),
    )


S, A = len(SEARCH_TEXT), len(ANSWER_TEXT)
NUM_SAMPLED = 8 * S + 4 * A + 2 + len("lost")  # seven searches of live episodes, one of a void one
LIVE_SEARCH_TOKENS, LIVE_OTHER_TOKENS = 7 * S, 4 * A + 2 + 4


def test_hand_counted_shares_of_episodes() -> None:
    """Would catch void episodes in the means, and a group that its void episode makes mixed."""
    metrics = hand_counted_metrics()
    assert metrics["agent/void_share"] == metrics["agent/void_search_share"] == pytest.approx(1 / 6)
    assert metrics["agent/searches_per_question"] == pytest.approx((1 + 2 + 0 + 3 + 0) / 5)
    shares = [metrics[f"agent/searches_{number}_share"] for number in ("0", "1", "2", "3_or_more")]
    assert shares == pytest.approx([2 / 5, 1 / 5, 1 / 5, 1 / 5])
    assert metrics["agent/repeated_query_share"] == pytest.approx(2 / 5)
    assert metrics["agent/format_rate"] == pytest.approx(3 / 5)
    stops = [metrics[f"agent/stop_{stop}"] for stop in ("answered", "max_turns", "max_tokens", "malformed")]
    assert stops == pytest.approx([4 / 5, 1 / 5, 0, 0])
    assert metrics["agent/evidence_hit"] == pytest.approx((0.5 + 0.5 + 0 + 0.5 + 0) / 5)
    assert metrics["reward/exact_match"] == pytest.approx(2 / 5)
    groups = [metrics[f"group/{kind}_share"] for kind in ("mixed", "all_zero", "all_one")]
    assert groups == pytest.approx([1 / 3, 1 / 3, 1 / 3])


def test_hand_counted_turns_and_tokens() -> None:
    """Would catch means over episodes where the unit is a turn, and retrieved tokens among the sampled ones."""
    metrics = hand_counted_metrics()
    assert metrics["agent/valid_action_share"] == pytest.approx((2 + 2 + 1 + 4 + 1) / 12)
    assert metrics["agent/policy_tokens"] == pytest.approx((LIVE_SEARCH_TOKENS + LIVE_OTHER_TOKENS) / 5)
    num_environment, num_prompt = 7 * 3, 5 * 2
    sequence_tokens = LIVE_SEARCH_TOKENS + LIVE_OTHER_TOKENS + num_environment + num_prompt
    assert metrics["agent/sequence_tokens"] == pytest.approx(sequence_tokens / 5)
    assert metrics["agent/passages_shortened"] == pytest.approx(2 / 6)
    assert metrics["agent/observations_shortened_share"] == pytest.approx(1 / 6)
    thoughts = 7 * len("I look it up.") + 4 * len("so it is")
    assert metrics["agent/reasoning_characters"] == pytest.approx(thoughts / 12)
    tokens = LIVE_SEARCH_TOKENS + LIVE_OTHER_TOKENS
    assert metrics["agent/entropy_estimate"] == pytest.approx((tokens + A) / tokens)


def test_hand_counted_waste() -> None:
    """Would catch tokens behind a closing tag that nobody notices, and a token that is counted twice."""
    metrics = hand_counted_metrics()
    assert metrics["waste/void_tokens"] == S
    assert metrics["waste/malformed_tokens"] == len("lost")
    assert metrics["waste/behind_stop_tokens"] == 2
    assert metrics["waste/token_share"] == pytest.approx((S + 4 + 2) / NUM_SAMPLED)


def test_hand_counted_search_times() -> None:
    """Would catch turns without a search in the mean, and a share of the sum of what waits side by side."""
    metrics = hand_counted_metrics()
    assert metrics["search/seconds_mean"] == pytest.approx(6 * 2.0 / 6)
    assert metrics["search/seconds_p95"] == 2.0
    assert metrics["search/share_of_step"] == pytest.approx(6 * 2.0 / 5 / 10.0)


def test_p95_is_a_time_that_was_measured() -> None:
    """Would catch the slowest of many, or an average, shown as the 95th percentile."""
    turns = [replace(found(), search_seconds=float(i)) for i in range(20, 0, -1)]
    assert metrics_of(rollout("a", 1.0, *turns, answered()))["search/seconds_p95"] == 19.0


def test_step_of_void_episodes_alone() -> None:
    """Would catch a mean over nothing."""
    void = rollout("a", 0.0, turn(Search("q"), SEARCH_TEXT), stop=StopReason.SEARCH_FAILED)
    assert metrics_of(void) == {
        "agent/void_share": 1.0,
        "agent/void_search_share": 1.0,
        "agent/void_reward_share": 0.0,
        "waste/token_share": 1.0,
        "waste/void_tokens": S,
        "waste/malformed_tokens": 0,
        "waste/behind_stop_tokens": 0,
    }


def test_episode_whose_reward_failed_is_void() -> None:
    """Would catch a reward of 0 that nobody gave, in the mean reward and in the mixed groups."""
    failed = replace(rollout("a", 0.0, answered()), reward=Reward(0.0, failure="reward part 'm:f' gave nan"))
    metrics = metrics_of(rollout("a", 1.0, answered()), failed)
    assert metrics["reward/exact_match"] == 1.0
    assert metrics["group/mixed_share"] == 0.0
    shares = [metrics[f"agent/void_{kind}"] for kind in ("share", "search_share", "reward_share")]
    assert shares == [0.5, 0.0, 0.5]


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        ("<think>\nWhy?\n</think>\n<answer>x</answer>", "Why?"),
        ("<think>a <search> tag</think><search>q</search>", "a <search> tag"),
        ("opened in the prompt</think>the answer", "opened in the prompt"),
        ('Let me see.\n<tool_call>{"name": "search"}</tool_call>', "Let me see."),
        ("<answer>x</answer>", ""),
        ("no action at all", ""),
    ],
)
def test_reasoning_is_what_stands_before_the_action(text: str, thought: str) -> None:
    """Would catch a thought that ends at a tag which it only mentions, and an answer counted as thinking."""
    assert reasoning_of(text) == thought


def test_every_metric_of_the_code_is_in_the_table_and_no_other() -> None:
    """Would catch a metric without a unit, and a row whose metric was renamed."""
    made = hand_counted_metrics() | StepEpisodes((), SearchCounts()).metrics | Agreement(1.0, 0.0, (0.0,) * 3).metrics
    result = DevResult(1, 0.0, 0.0, 1.0, 1)
    made |= dev_metrics(result, best=result, scores={"void": [0.0]})
    names = {re.sub(r"^reward/(?!total$).*", "reward/PART", name) for name in made}
    section = Path("search_rl/training/README.md").read_text().split("\n## Metrics\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\S+)`", row[0])} == names
    assert all(len(row) == 3 and row[1].strip() for row in rows)
