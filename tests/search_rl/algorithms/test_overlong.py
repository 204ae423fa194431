"""DAPO's penalty at its corners."""

from __future__ import annotations

import pytest

from search_rl.algorithms.overlong import overlong_penalty


@pytest.mark.parametrize(("num_tokens", "penalty"), [(0, 0.0), (80, 0.0), (85, -0.25), (100, -1.0), (500, -1.0)])
def test_penalty_sets_in_with_the_buffer_and_ends_at_one(num_tokens: int, penalty: float) -> None:
    """Would catch a penalty before the buffer (100 - 20), and one that grows past the limit."""
    assert overlong_penalty(num_tokens, limit_tokens=100, buffer_tokens=20) == penalty
