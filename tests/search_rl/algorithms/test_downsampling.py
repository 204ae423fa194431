"""Which siblings are kept, against every subset that there is."""

from __future__ import annotations

from itertools import combinations, compress
from statistics import pvariance

from hypothesis import given
from hypothesis import strategies as st

from search_rl.algorithms.downsampling import most_varied


@given(st.lists(st.sampled_from([0.0, 0.2, 0.5, 1.0]), min_size=1, max_size=8), st.integers(1, 8))
def test_no_other_subset_varies_more(rewards: list[float], count: int) -> None:
    """Would catch a choice of the best answers alone, whose rewards are equal, and one of the wrong size."""
    kept = list(compress(rewards, most_varied(rewards, ["q"] * len(rewards), range(len(rewards)), count)))
    size = min(count, len(rewards))
    assert len(kept) == size
    assert pvariance(kept) >= max(pvariance(subset) for subset in combinations(rewards, size)) - 1e-12


def test_one_right_answer_in_eight_is_kept_with_wrong_ones() -> None:
    """Would catch the one episode that teaches anything being left out; void ones are no candidates."""
    rewards, groups = [0, 0, 0, 0, 0, 0, 1, 9, 1, 1, 1], [*["a"] * 7, None, *["b"] * 3]
    kept = most_varied(rewards, groups, range(11), 2)
    assert kept[6] and sum(kept[:7]) == 2
    assert not kept[7]
    assert sum(kept[8:]) == 2


@given(st.permutations(range(8)), st.lists(st.sampled_from([0.0, 1.0]), min_size=8, max_size=8))
def test_order_of_the_rows_chooses_nobody(order: list[int], rewards: list[float]) -> None:
    """Rows come in the order in which episodes end: among equal rewards the longest were kept, and long ones taught."""
    kept = most_varied(rewards, ["q"] * 8, range(8), 4)
    permuted = most_varied([rewards[row] for row in order], ["q"] * 8, order, 4)
    assert permuted == [kept[row] for row in order]
