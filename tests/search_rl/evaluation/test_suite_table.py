"""The table that a suite ends with: money and budgets beside exact match."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from search_rl.evaluation.cost import ModelPrice, Prices
from search_rl.evaluation.episode_file import stored_rollouts
from search_rl.evaluation.measured import measure
from search_rl.evaluation.results import load_result
from search_rl.evaluation.suite import SystemResult
from search_rl.evaluation.suite_table import suite_row, suite_table
from search_rl.profiles import SEARCH_R1
from tests.search_rl.evaluation.told import ask, told, write

QUESTIONS = [ask(f"nq {number}", "red") for number in range(4)]
PRICES = Prices("EUR", search_per_thousand=500.0, model=ModelPrice(input_per_million_tokens=1e6))


def measured(folder: Path, name: str, answers: str, *, prices: Prices | None, budgets: str | None) -> SystemResult:
    """Four questions, each asked with one search; an r is a right answer."""
    told_so = [told(it, "red" if letter == "r" else "x", "q") for it, letter in zip(QUESTIONS, answers, strict=True)]
    write(folder / name, told_so)
    figures = measure(stored_rollouts(folder / name / "episodes.jsonl"), profile=SEARCH_R1, top_k=3, prices=prices)
    return SystemResult(name, folder / name, load_result(folder / name).summary(), figures, budgets)


def shown(*results: SystemResult) -> list[list[str]]:
    """The words of each line, as a terminal of 120 characters shows them."""
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(suite_table(results))
    return [line.split() for line in console.export_text().splitlines() if line.strip()]


def test_money_a_question_and_a_right_answer_beside_exact_match(tmp_path: Path) -> None:
    """Money of all questions under the name of one, wrong answers for nothing, or a column that a terminal cuts off."""
    found = [
        measured(tmp_path, name, answers, prices=PRICES, budgets="default")
        for name, answers in (("half", "rrww"), ("none", "wwww"))
    ]
    # Each question sends 3 and then 7 tokens, writes 4 for nothing, and searches for half a EUR.
    assert [suite_row(it)["money_per_question"] for it in found] == [pytest.approx(10.5)] * 2
    assert [suite_row(it)["money_per_right_answer"] for it in found] == [pytest.approx(21.0), None]
    heading, _, half, none, _ = shown(*found)
    assert heading[-2:] == ["EUR/q", "EUR/right"]
    assert (half[1], half[-2:]) == ("0.500", ["10.5", "21"])
    assert (none[1], none[-2:]) == ("0.000", ["10.5", "-"])


def test_without_prices_there_is_no_money(tmp_path: Path) -> None:
    """A cost of 0 where nobody gave a price."""
    result = measured(tmp_path, "free", "rrww", prices=None, budgets=None)
    heading, _, row = shown(result)
    assert heading[-1] == "fail" and row[-1] == "0"
    assert (suite_row(result)["money_per_question"], suite_row(result)["budgets"]) == (None, None)


def test_the_preset_of_the_budgets_is_named_below(tmp_path: Path) -> None:
    """A table of the paper's budgets beside one of ours, and nobody can tell which is which."""
    paper = measured(tmp_path, "one", "rrww", prices=None, budgets="paper, but max_turns=3")
    assert shown(paper, replace(paper, name="two"))[-1] == ["budgets:", "paper,", "but", "max_turns=3"]
    assert suite_row(paper)["budgets"] == "paper, but max_turns=3"
    assert shown(paper, replace(paper, budgets="default"))[-1][-1] == "default"
