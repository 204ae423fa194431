"""What dynamic sampling calls a group that teaches nothing."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


def test_group_is_judged_by_its_live_rewards() -> None:
    """Would catch a void episode's 0 that makes two right answers look mixed, and a lone live episode that is kept."""
    from search_rl.training.sampling import shared_reward

    assert shared_reward([1.0, 1.0]) == 1.0
    assert shared_reward([1.0]) == 1.0
    assert shared_reward([]) == 0.0
    assert shared_reward([1.0, 0.0, 1.0]) is None
