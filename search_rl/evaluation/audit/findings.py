"""What one check of an audit found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from search_rl.evaluation.statistics import Interval, share_interval

NUM_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """`num_hits` of `num_cases` are what the check looks for; `examples` are some of them, for people.

    It is flagged when even the lower bound of the share's 95 % Wilson interval is above the threshold, so that few
    questions raise no false alarm; a threshold of 0 flags the first hit.
    """

    check: str
    meaning: str
    num_hits: int
    num_cases: int
    threshold: float
    examples: tuple[str, ...] = ()

    @property
    def share(self) -> Interval | None:
        """None where the check had nothing to look at."""
        return share_interval(self.num_hits, self.num_cases) if self.num_cases else None

    @property
    def is_flagged(self) -> bool:
        """True when somebody should look."""
        return self.share is not None and self.num_hits > 0 and self.share.low > self.threshold


def finding(check: str, meaning: str, *, hits: Iterable[str], num_cases: int, threshold: float) -> Finding:
    """A finding of a text a hit; the first texts are its examples."""
    texts = list(hits)
    return Finding(check, meaning, len(texts), num_cases, threshold, tuple(texts[:NUM_EXAMPLES]))
