"""Means with 95 % intervals, and the paired comparison of two results on the same questions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

CONFIDENCE = 0.95

_Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
_NUM_RESAMPLES = 2000
_SAMPLES_PER_BATCH = 4_000_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over `n` values and the bounds of its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The second of two results against the first.

    `wins` counts questions that only the second got right, `losses` those that only the first did.
    """

    wins: int
    losses: int
    p_value: float
    difference: Interval


def mean_interval(values: Sequence[float], *, seed: int = 0) -> Interval:
    """The mean of `values`, with Wilson's score interval where all are 0 or 1, else a percentile bootstrap.

    Raises ValueError when there are none.
    """
    if not values:
        raise ValueError("no values: a mean needs at least one")
    if set(values) <= {0.0, 1.0}:
        return _wilson(round(sum(values)), len(values))
    return _bootstrap(values, seed)


def paired_test(first: Sequence[float], second: Sequence[float]) -> PairedTest:
    """The exact McNemar test (two-sided) of 0/1 scores on the same questions, in the same order.

    The interval of the difference is Bonett and Price's adjusted Wald (2012), sound for few pairs and
    where none differ. Raises ValueError for other scores, unequal lengths or no pairs.
    """
    if not set(first) | set(second) <= {0.0, 1.0}:
        raise ValueError("a paired test needs scores of 0 or 1")
    wins = sum(after > before for before, after in zip(first, second, strict=True))
    losses = sum(after < before for before, after in zip(first, second, strict=True))
    return PairedTest(wins, losses, _sign_test(wins, losses), _difference(wins, losses, len(first)))


def _wilson(num_successes: int, n: int) -> Interval:
    from scipy.stats import binomtest

    bounds = binomtest(num_successes, n).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(num_successes / n, float(bounds.low), float(bounds.high), n)


def _bootstrap(values: Sequence[float], seed: int) -> Interval:
    import numpy as np
    from scipy.stats import bootstrap

    mean = fmean(values)
    if len(set(values)) == 1:
        return Interval(mean, mean, mean, len(values))
    bounds = bootstrap(
        (np.asarray(values),),
        np.mean,
        n_resamples=_NUM_RESAMPLES,
        batch=max(1, _SAMPLES_PER_BATCH // len(values)),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(mean, float(bounds.low), float(bounds.high), len(values))


def _sign_test(wins: int, losses: int) -> float:
    from scipy.stats import binomtest

    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def _difference(wins: int, losses: int, n: int) -> Interval:
    if n == 0:
        raise ValueError("no pairs: a paired test needs at least one")
    win_share, loss_share = (wins + 1) / (n + 2), (losses + 1) / (n + 2)
    centre = win_share - loss_share
    half = _Z * math.sqrt((win_share + loss_share - centre**2) / (n + 2))
    return Interval((wins - losses) / n, max(centre - half, -1.0), min(centre + half, 1.0), n)
