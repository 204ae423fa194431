"""Which siblings are trained on when not all are. Axes: B episode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from statistics import pvariance


def most_varied(
    rewards_B: Sequence[float], groups_B: Sequence[Hashable | None], siblings_B: Sequence[int], count: int
) -> list[bool]:
    """True for the `count` siblings of each group whose rewards vary most; a group of None is void and never kept.

    Of a sorted group such a subset is always some of the lowest and some of the highest, so few are compared. Source:
    PODS, 2504.13818 (max-variance down-sampling); as there, advantages come from the kept siblings alone. Equal rewards
    go by the number of the sibling, which says nothing about the episode; the order of the rows says how long it was.
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for row, group in enumerate(groups_B):
        if group is not None:
            members[group].append(row)
    is_kept = [False] * len(groups_B)
    for rows in members.values():
        ranked = sorted(rows, key=lambda row: (rewards_B[row], siblings_B[row]))
        size = min(count, len(ranked))
        subsets = [ranked[:low] + ranked[len(ranked) - size + low :] for low in range(size + 1)]
        for row in max(subsets, key=lambda subset: pvariance([rewards_B[row] for row in subset])):
            is_kept[row] = True
    return is_kept
