"""Two results against each other: refused where they were measured unlike, and right where they are paired."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pytest import approx

from search_rl.errors import ConfigError
from search_rl.evaluation.comparison import Comparison, compare_results, comparison_to_json
from search_rl.evaluation.results import load_result
from search_rl.profiles import PROFILES
from search_rl.types import StopReason, Trajectory
from tests.search_rl.evaluation.told import ask, protocol, told, write

NQ = [ask(f"nq {number}", "dark blue") for number in range(8)]
POPQA = [ask(f"popqa {number}", "red", dataset="popqa") for number in range(4)]
BAMBOOGLE = [ask(f"bamboogle {number}", "red", dataset="bamboogle") for number in range(2)]


def answered(nq: str, popqa: str, bamboogle: str) -> list[Trajectory]:
    """A letter a question: r right, h half right, w wrong."""
    words = {"r": {"nq": "dark blue", "popqa": "red", "bamboogle": "red"}, "h": {"nq": "blue"}, "w": {}}
    asked = zip([*NQ, *POPQA, *BAMBOOGLE], nq + popqa + bamboogle, strict=True)
    return [told(question, words[letter].get(question.dataset, "x")) for question, letter in asked]


FIRST = answered("rwwwwwww", "rrww", "ww")
SECOND = answered("wrrrrrhw", "rrrw", "rw")


def compared(tmp_path: Path, **options: bool) -> Comparison:
    """SECOND against FIRST."""
    first, second = write(tmp_path / "first", FIRST), write(tmp_path / "second", SECOND[::-1])
    return compare_results(load_result(first), load_result(second), **options)


def test_figures_by_hand(tmp_path: Path) -> None:
    """Won and lost the wrong way round, pairs by position, p-values of rows that are no data set among Holm's."""
    rows = compared(tmp_path).rows
    assert list(rows) == ["all", "bamboogle", "nq", "popqa"]
    assert [(row.test.wins, row.test.losses) for row in rows.values()] == [(7, 1), (1, 0), (5, 1), (1, 0)]
    assert rows["nq"].test.p_value == approx(2 * 7 / 64)
    assert rows["all"].holm_p_value is None
    assert rows["nq"].holm_p_value == approx(3 * 14 / 64)
    assert rows["popqa"].holm_p_value == 1.0
    assert rows["nq"].f1_difference.mean == approx((5 - 1 + 2 / 3) / 8)


def test_averages_by_hand_and_bamboogle_apart(tmp_path: Path) -> None:
    """Bamboogle's few questions in an average that people rank by, or no such average as papers print."""
    averages = compared(tmp_path).averages
    assert list(averages) == [
        "macro over 2",
        "micro over 2",
        "macro over 3, with bamboogle",
        "micro over 3, with bamboogle",
    ]
    assert averages["macro over 2"].headline.mean == approx((4 / 8 + 1 / 4) / 2)
    assert averages["micro over 2"].headline.mean == approx(5 / 12)
    assert averages["macro over 3, with bamboogle"].headline.mean == approx((4 / 8 + 1 / 4 + 1 / 2) / 3)
    assert averages["micro over 3, with bamboogle"].headline.n == 14


def test_unlike_protocols_are_refused_and_named(tmp_path: Path) -> None:
    """Two results of different k in one table, which is how papers differ by three points."""
    first = load_result(write(tmp_path / "a", FIRST))
    second = load_result(write(tmp_path / "b", SECOND, rules=protocol(limits={"top_k": 5})))
    with pytest.raises(ConfigError, match=r"not measured alike \(limits.top_k: 3 against 5\): --force"):
        compare_results(first, second)
    forced = compare_results(first, second, is_forced=True)
    assert [str(difference) for difference in forced.differences] == ["limits.top_k: 3 against 5"]
    document = json.loads(json.dumps(comparison_to_json(forced)))
    assert document["protocol_differences"] == [{"name": "limits.top_k", "first": 3, "second": 5}]


def test_a_missing_protocol_is_refused_and_warned_of(tmp_path: Path) -> None:
    """A result from before protocol files taken as measured alike."""
    first, second = write(tmp_path / "a", FIRST), write(tmp_path / "b", SECOND)
    (first / "protocol.json").unlink()
    with pytest.raises(ConfigError, match="has no protocol file"):
        compare_results(load_result(first), load_result(second))
    forced = compare_results(load_result(first), load_result(second), is_forced=True)
    assert forced.warnings == (f"{tmp_path.name}/a has no protocol file",)


def test_what_is_not_paired_or_not_valid_is_told(tmp_path: Path) -> None:
    """Questions that vanish from a comparison, or a retriever's bad day that looks like a worse policy."""
    failed = [told(NQ[0], None, stop_reason=StopReason.SEARCH_FAILED), *SECOND[1:6]]
    first, second = write(tmp_path / "a", FIRST), write(tmp_path / "b", failed)
    comparison = compare_results(load_result(first), load_result(second))
    assert comparison.rows["all"].test.difference.n == 6
    assert [warning.split("/")[-1] for warning in comparison.warnings] == [
        "a are in no pair and left out",
        "b is NOT VALID: 1 of 6 questions failed",
    ]
    assert comparison.warnings[0].startswith("8 questions of ")


def test_results_without_a_common_question(tmp_path: Path) -> None:
    """A p-value of nothing."""
    first, second = write(tmp_path / "a", FIRST[:3]), write(tmp_path / "b", SECOND[3:])
    with pytest.raises(ConfigError, match="share no question"):
        compare_results(load_result(first), load_result(second))


def test_one_profile_scores_both_by_its_own_headline(tmp_path: Path) -> None:
    """PopQA's accuracy on one side and exact match on the other."""
    popqa = PROFILES["popqa_acc"]
    first = load_result(write(tmp_path / "a", [told(NQ[0], "x")]), profile=popqa)
    second = load_result(write(tmp_path / "b", [told(NQ[0], "a dark blue sea")]), profile=popqa)
    comparison = compare_results(first, second)
    assert (comparison.profile, comparison.rows["all"].test.wins) == (popqa, 1)
