"""The learning curve: what is computed, and that a picture comes out of odd input."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from search_rl.viewer.curves import Level, moving_mean, plot_learning_curve, spread

LEVELS = (Level("before", 0.0, 0.0, 0.02), Level("after", 0.8, 0.7, 0.9))
ROWS = [{"step": step, "reward/exact_match": step / 10, "agent/searches_per_question": 1.0} for step in (1, 2, 3)]


def test_moving_mean_looks_back_only() -> None:
    """A centred window, which would show a step what comes after it."""
    assert moving_mean([1.0, 0.0, 2.0, 4.0], 2) == [1.0, 0.5, 1.0, 3.0]


@given(st.lists(st.floats(0, 1), max_size=6))
def test_spread_labels_keep_order_and_distance(heights: list[float]) -> None:
    """Labels printed over each other, or beside another line's."""
    placed = spread(heights, least_gap=0.1)
    assert all(after >= before for before, after in zip(heights, placed, strict=True))
    ordered = sorted(placed)
    assert all(high - low >= 0.1 - 1e-9 for low, high in pairwise(ordered))
    assert spread([0.8, 0.75, 0.1], least_gap=0.1) == [approx(0.85), 0.75, 0.1]


@pytest.mark.parametrize(
    "rows",
    [ROWS, [], ROWS[:1], [{"step": 1, "critic/score/mean": 0.5}, {"step": 2}]],
    ids=["steps", "no steps", "one step", "verl names"],
)
def test_a_picture_is_written(rows: list[dict[str, float]], tmp_path: Path) -> None:
    """A plot that fails after a long run because a row lacks a figure, or because no step ended."""
    path = tmp_path / "plots" / "curve.png"
    plot_learning_curve(rows, LEVELS, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000
