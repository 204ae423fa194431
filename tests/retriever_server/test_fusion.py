"""The laws of reciprocal rank fusion."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever_server.fusion import reciprocal_rank_fusion

rankings = st.lists(st.lists(st.integers(0, 30), unique=True, max_size=20), max_size=4)


def test_the_score_by_hand() -> None:
    """Would catch ranks from 0, another offset than 60, or scores of the rankings mixed in."""
    rows, scores = zip(*reciprocal_rank_fusion([[7, 5, 9], [5, 8]]), strict=True)
    assert rows == (5, 7, 8, 9)
    assert scores == pytest.approx((1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63))


def test_equal_sums_come_in_row_order() -> None:
    """Would catch an order that depends on which ranking was read first."""
    assert [row for row, _ in reciprocal_rank_fusion([[4, 2], [3, 1]])] == [3, 4, 1, 2]


@given(rankings)
def test_each_row_stands_once_in_order_with_its_own_sum(lists: list[list[int]]) -> None:
    """Would catch a row that is lost, listed twice, or carries another row's score."""
    fused = reciprocal_rank_fusion(lists)
    assert sorted(row for row, _ in fused) == sorted({row for rows in lists for row in rows})
    for row, score in fused:
        assert score == pytest.approx(sum(1 / (61 + rows.index(row)) for rows in lists if row in rows))
    assert fused == sorted(fused, key=lambda hit: (-hit[1], hit[0]))


@given(rankings, st.randoms())
def test_the_order_of_the_rankings_does_not_matter(lists: list[list[int]], random: Random) -> None:
    """Would catch sums that round differently, and so swap equal rows."""
    shuffled = list(lists)
    random.shuffle(shuffled)
    assert reciprocal_rank_fusion(shuffled) == reciprocal_rank_fusion(lists)


@given(rankings.filter(bool))
def test_what_is_first_everywhere_is_first(lists: list[list[int]]) -> None:
    """Would catch a fusion that lets many middling ranks win over the best."""
    with_first = [[99, *rows] for rows in lists]
    assert reciprocal_rank_fusion(with_first)[0][0] == 99


@given(rankings.filter(bool))
def test_one_ranking_alone_keeps_its_order(lists: list[list[int]]) -> None:
    """Would catch rows that move although nothing contradicts their order, when the other retriever finds nothing."""
    assert [row for row, _ in reciprocal_rank_fusion([lists[0], []])] == lists[0]
