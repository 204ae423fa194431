"""Intervals and paired tests against values worked out by hand."""

from __future__ import annotations

from dataclasses import astuple
from math import sqrt
from statistics import pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from search_rl.evaluation.statistics import (
    Interval,
    Weighting,
    average_interval,
    bootstrap_interval,
    holm,
    mean_interval,
    paired_test,
    pass_at,
)

SCORES = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=40)


def test_wilson_interval() -> None:
    """A Wald interval (which would be .552 to 1.048 here) or a one-sided one in place of Wilson's."""
    interval = mean_interval([1.0] * 8 + [0.0] * 2)
    assert astuple(interval) == approx((0.8, 0.49016, 0.94332, 10), abs=1e-5)


def test_wilson_interval_of_no_success() -> None:
    """A zero-width interval for 0 of 20, where z² / (n + z²) is the upper bound."""
    assert astuple(mean_interval([0.0] * 20)) == approx((0.0, 0.0, 3.8415 / 23.8415, 20), abs=1e-5)


def test_bootstrap_interval_is_near_the_normal_one_and_repeats() -> None:
    """A bootstrap that resamples wrongly, or that gives other figures when run again."""
    values = [index / 199 for index in range(200)]
    interval = mean_interval(values)
    half = 1.96 * pstdev(values) / sqrt(200)
    assert interval.mean == approx(0.5)
    assert interval.low == approx(0.5 - half, abs=0.1 * half)
    assert interval.high == approx(0.5 + half, abs=0.1 * half)
    assert mean_interval(values) == interval


def test_bootstrap_of_equal_values() -> None:
    """NaN bounds and a library warning where the values do not vary, or where there is only one."""
    assert mean_interval([0.5, 0.5]) == Interval(0.5, 0.5, 0.5, 2)
    assert mean_interval([0.25]) == Interval(0.25, 0.25, 0.25, 1)


def test_no_values_have_no_mean() -> None:
    """A silent 0 for an empty result."""
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])
    with pytest.raises(ValueError, match="at least one"):
        paired_test([], [])


def test_exact_mcnemar() -> None:
    """The chi-squared approximation, or a one-sided test: the exact p is 2 (1 + 20) / 2**20."""
    test = paired_test([1.0] + [0.0] * 19 + [1.0] * 10, [0.0] + [1.0] * 19 + [1.0] * 10)
    assert (test.wins, test.losses) == (19, 1)
    assert test.p_value == approx(42 / 2**20)


def test_difference_interval() -> None:
    """An interval for independent samples: by hand, Bonett-Price has .2 - .1 ± z sqrt((.3 - .01) / 20)."""
    test = paired_test([0.0] * 3 + [1.0] + [1.0] * 14, [1.0] * 3 + [0.0] + [1.0] * 14)
    half = 1.959964 * sqrt(0.0145)
    assert astuple(test.difference) == approx((2 / 18, 0.1 - half, 0.1 + half, 18), abs=1e-6)


def test_nothing_changed() -> None:
    """A division by zero without discordant pairs."""
    test = paired_test([1.0, 0.0], [1.0, 0.0])
    assert (test.wins, test.losses, test.p_value, test.difference.mean) == (0, 0, 1.0, 0.0)


@pytest.mark.parametrize(("first", "second"), [([0.5], [1.0]), ([1.0], [1.0, 0.0])])
def test_paired_test_refuses_what_it_cannot_pair(first: list[float], second: list[float]) -> None:
    """F1 scores taken for right and wrong, or results of unequal length cut to the shorter."""
    with pytest.raises(ValueError):
        paired_test(first, second)


@given(SCORES)
def test_mean_lies_in_its_interval(scores: list[float]) -> None:
    """Bounds swapped or off by a factor."""
    interval = mean_interval(scores)
    assert 0.0 <= interval.low <= interval.mean + 1e-12
    assert interval.mean - 1e-12 <= interval.high <= 1.0


@given(SCORES, st.randoms(use_true_random=False))
def test_swapping_the_results_swaps_the_verdict(first: list[float], random: st.DataObject) -> None:
    """Wins and losses counted from the wrong side."""
    second = [random.choice([0.0, 1.0]) for _ in first]  # type: ignore[attr-defined]
    forward, backward = paired_test(first, second), paired_test(second, first)
    assert (forward.wins, forward.losses) == (backward.losses, backward.wins)
    assert forward.p_value == approx(backward.p_value)
    assert forward.difference.mean == approx(-backward.difference.mean)
    assert forward.difference.low == approx(-backward.difference.high)


def test_macro_and_micro_averages() -> None:
    """A macro average that weighs by size, or a micro average that does not; by hand (.5 + .2) / 2 and 70 / 290."""
    small, large = [1.0, 0.0] * 20, [1.0] * 50 + [0.0] * 200
    macro, micro = average_interval([small, large], "macro"), average_interval([small, large], "micro")
    assert (macro.mean, macro.n) == approx((0.35, 290))
    assert (micro.mean, micro.n) == approx((70 / 290, 290))
    # The variances of the two means are .25 / 40 and .16 / 250; half of a mean has a quarter of its variance.
    half = 1.96 * sqrt((0.25 / 40 + 0.16 / 250) / 4)
    assert macro.high - macro.low == approx(2 * half, rel=0.1)
    half = 1.96 * sqrt(40 * 0.25 + 250 * 0.16) / 290
    assert micro.high - micro.low == approx(2 * half, rel=0.1)
    assert average_interval([small, large], "macro") == macro


def test_the_bootstrap_draws_inside_each_set() -> None:
    """Sets pooled before they are drawn: two sets of unlike constants vary in the pool and not inside."""
    assert astuple(bootstrap_interval([[0.25] * 50, [0.75] * 50])) == (0.5, 0.5, 0.5, 100)
    assert astuple(bootstrap_interval([[0.5], [0.1, 0.3]], "macro"))[0] == approx(0.35)


def test_averages_of_nothing_right_have_a_width() -> None:
    """A bootstrap that is sure of 0 because no question was right: by hand, two Wilson bounds of z² / (n + z²)."""
    bound = 3.8415 / 23.8415
    average = average_interval([[0.0] * 20, [0.0] * 20], "macro")
    assert astuple(average) == approx((0.0, 0.0, bound / sqrt(2), 40), abs=1e-5)
    assert astuple(bootstrap_interval([[0.0] * 20])) == (0.0, 0.0, 0.0, 20)


@pytest.mark.parametrize("strata", [[], [[]], [[1.0], []]])
def test_an_average_needs_values_in_each_set(strata: list[list[float]]) -> None:
    """A set without questions that counts as 0, or as nothing."""
    with pytest.raises(ValueError, match="at least one"):
        average_interval(strata, "macro")


def test_paired_bootstrap_is_of_differences() -> None:
    """An interval for independent samples, three times as wide where the two results go together."""
    first = [index / 99 for index in range(100)]
    gaps = [0.1 if index % 2 else 0.0 for index in range(100)]
    interval = bootstrap_interval([gaps])
    assert interval.mean == approx(0.05)
    assert interval.high - interval.low == approx(2 * 1.96 * pstdev(gaps) / 10, rel=0.1)
    assert interval.high - interval.low < 0.2 * 2 * 1.96 * pstdev(first) / 10


def test_holm_by_hand() -> None:
    """Bonferroni (which would give .12 for the last), or p-values under another set's name."""
    adjusted = holm({"nq": 0.01, "popqa": 0.04, "musique": 0.03})
    assert adjusted == {"nq": approx(0.03), "popqa": approx(0.06), "musique": approx(0.06)}
    assert holm({}) == {}
    assert holm({"nq": 0.9, "popqa": 0.8}) == {"nq": 1.0, "popqa": 1.0}


@pytest.mark.parametrize(
    ("num_right", "k", "chance"), [(0, 3, 0.0), (1, 1, 0.2), (2, 2, 0.7), (4, 2, 1.0), (1, 5, 1.0)]
)
def test_pass_at_by_hand(num_right: int, k: int, chance: float) -> None:
    """The biased 1 - (1 - c/n)^k, which has .64 for two of five at k = 2, where 1 - 3/10 is right."""
    assert pass_at(k, num_right=num_right, num_samples=5) == approx(chance)


def test_pass_at_needs_its_samples() -> None:
    """A pass@k that nobody can have measured."""
    for k in (0, 6):
        with pytest.raises(ValueError, match=f"pass@{k} needs"):
            pass_at(k, num_right=1, num_samples=5)


@given(st.lists(SCORES, min_size=1, max_size=3), st.sampled_from(["macro", "micro"]))
@settings(max_examples=30)
def test_an_average_lies_in_its_interval(strata: list[list[float]], weighting: Weighting) -> None:
    """Weights that do not add up to one, or bounds off by a factor."""
    interval = average_interval(strata, weighting)
    assert -1e-12 <= interval.low <= interval.mean + 1e-12
    assert interval.mean - 1e-12 <= interval.high <= 1.0 + 1e-12
