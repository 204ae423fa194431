"""Intervals and paired tests against values worked out by hand."""

from __future__ import annotations

from dataclasses import astuple
from math import sqrt
from statistics import pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from search_rl.evaluation.statistics import Interval, mean_interval, paired_test

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
