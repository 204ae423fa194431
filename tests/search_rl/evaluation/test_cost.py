"""What an evaluation cost, by hand-counted tokens and prices."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest import approx

from search_rl.errors import ConfigError
from search_rl.evaluation.cost import CostTally, Usage, read_prices, usage_of
from search_rl.records import Record
from search_rl.types import (
    Answer,
    Observation,
    Origin,
    Question,
    Reward,
    Rollout,
    Search,
    Segment,
    StopReason,
    Trajectory,
    Turn,
)

TABLE = """
currency: EUR
search_per_thousand: 2.0
models:
  small: {input_per_million_tokens: 10, cached_input_per_million_tokens: 1, output_per_million_tokens: 100}
  own: {engine_per_hour: 36}
  plain: {input_per_million_tokens: 10}
"""


def policy(num_tokens: int) -> Segment:
    """So many tokens by the policy."""
    return Segment(Origin.POLICY, (1,) * num_tokens, (0.0,) * num_tokens)


SEARCHED = Turn(
    policy(5), "", Search("q"), Observation("x"), Segment(Origin.ENVIRONMENT, (2,) * 30), search_seconds=0.25
)
EPISODE = Trajectory(
    Question("q", "?", ("x",), "demo"),
    Segment(Origin.PROMPT, (1,) * 100),
    (SEARCHED, Turn(policy(7), "", Answer("x"))),
    StopReason.ANSWERED,
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A price table."""
    path = tmp_path / "prices.yaml"
    path.write_text(TABLE)
    return path


def test_usage_counts_the_context_of_each_call() -> None:
    """Tokens of the prompt counted once, although each turn sends them again; or passages billed as written."""
    usage = usage_of(EPISODE)
    assert (usage.num_calls, usage.sent_tokens, usage.repeated_tokens, usage.written_tokens) == (2, 235, 105, 12)
    assert usage.search_seconds == 0.25


def test_money(table: Path) -> None:
    """Cached input at the full price, a search for nothing, or an hour of seconds."""
    usage = Usage(sent_tokens=1_000_000, repeated_tokens=400_000, written_tokens=10_000, num_searches=500)
    assert read_prices(table, "small").money(usage, 100.0) == approx(6.0 + 0.4 + 1.0 + 1.0)
    assert read_prices(table, "plain").money(usage, 0.0) == approx(10.0 + 1.0)
    assert read_prices(table, "runs/demo/own").money(usage, 100.0) == approx(1.0 + 1.0)


def test_an_evaluation_that_went_on_cost_both_runs(table: Path) -> None:
    """The seconds of the last run alone, those of a row summed over rows, or a question that was asked twice for
    nothing.
    """
    rollout = Rollout(EPISODE, Reward(1.0), "q")
    tally = CostTally()
    for session, seconds in ((1.0, 5.0), (1.0, 8.0), (2.0, 3.0)):
        row = {"session": session, "seconds": seconds, "engine_seconds": seconds / 2}
        tally.add(Record(rollout, row))
    cost = tally.cost(num_questions=2, num_right=1.0, prices=read_prices(table, "own"))
    assert (cost.wall_seconds, cost.engine_seconds, cost.usage.written_tokens) == (11.0, 5.5, 36)
    assert cost.money == approx(0.055)
    assert cost.money_per_question == approx(0.0275)
    assert cost.money_per_right_answer == approx(0.055)
    none = tally.cost(num_questions=2, num_right=0.0, prices=read_prices(table, "own"))
    assert none.money_per_right_answer is None
    assert tally.cost(num_questions=2, num_right=1.0, prices=None).money_per_question is None


BAD_TABLES = {
    "no currency": ("models: {}", "currency: Field required"),
    "a negative price": ("currency: EUR\nmodels: {m: {engine_per_hour: -1}}", "models.m.engine_per_hour"),
    "a misspelt key": ("currency: EUR\nmodels: {m: {engine_per_hours: 1}}", "models.m.engine_per_hours"),
    "not YAML": ("currency: [", "is not YAML"),
    "a list": ("- 1", "the table"),
    "another model": ("currency: EUR\nmodels: {smoll: {}}", "did you mean 'smoll'"),
}


@pytest.mark.parametrize(("text", "message"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_bad_price_table(text: str, message: str, tmp_path: Path) -> None:
    """A price that is read as 0 because its key was misspelt."""
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="price table") as caught:
        read_prices(path, "models/small")
    assert message in str(caught.value)


def test_no_price_table(tmp_path: Path) -> None:
    """A traceback for a path that was mistyped."""
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
        read_prices(tmp_path / "prices.yaml", "m")
