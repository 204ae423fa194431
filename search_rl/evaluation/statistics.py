"""Means with 95 % intervals, averages over sets, the paired comparison of two results, and what several samples of a
question say.

Every bootstrap is seeded: the same values give the same bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Any, Literal

CONFIDENCE = 0.95

Weighting = Literal["macro", "micro"]
"""How sets share in an average: macro gives each set the same weight, micro each question."""

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
        return share_interval(round(sum(values)), len(values))
    return bootstrap_interval([values], seed=seed)


def share_interval(num_hits: int, n: int) -> Interval:
    """The share `num_hits / n` with Wilson's score interval."""
    from scipy.stats import binomtest

    bounds = binomtest(num_hits, n).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(num_hits / n, float(bounds.low), float(bounds.high), n)


def average_interval(strata: Sequence[Sequence[float]], weighting: Weighting, *, seed: int = 0) -> Interval:
    """The average over the scores of several sets, with a percentile bootstrap that draws anew inside each set.

    Where each set is all 0 or all 1 a bootstrap has no width; there the Wilson bounds of the sets are joined (MOVER:
    Zou and Donner 2008). Raises ValueError for no set and for an empty one.
    """
    if any(len(set(values)) > 1 or set(values) - {0.0, 1.0} for values in strata):
        return bootstrap_interval(strata, weighting, seed=seed)
    weights = _weights(strata, weighting)
    parts = [share_interval(round(sum(values)), len(values)) for values in strata]
    mean = sum(weight * part.mean for weight, part in zip(weights, parts, strict=True))
    below = [weight * (part.mean - part.low) for weight, part in zip(weights, parts, strict=True)]
    above = [weight * (part.high - part.mean) for weight, part in zip(weights, parts, strict=True)]
    return Interval(mean, mean - math.hypot(*below), mean + math.hypot(*above), sum(map(len, strata)))


def bootstrap_interval(strata: Sequence[Sequence[float]], weighting: Weighting = "micro", *, seed: int = 0) -> Interval:
    """The average over any numbers of several sets, drawn anew inside each set: differences of pairs give the paired
    bootstrap. The bounds meet the mean where no set varies.

    Raises ValueError for no set and for an empty one.
    """
    weights = _weights(strata, weighting)
    mean = sum(weight * fmean(values) for weight, values in zip(weights, strata, strict=True))
    low = high = mean
    if any(min(values) != max(values) for values in strata):
        low, high = _bootstrap_bounds(strata, weights, seed)
    return Interval(mean, low, high, sum(map(len, strata)))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """The p-values adjusted for how many they are (Holm 1979), under the same names."""
    from statsmodels.stats.multitest import multipletests

    if not p_values:
        return {}
    adjusted = multipletests(list(p_values.values()), method="holm")[1]
    return {name: float(value) for name, value in zip(p_values, adjusted, strict=True)}


def pass_at(k: int, *, num_right: int, num_samples: int) -> float:
    """The chance that at least one of `k` of the samples of a question is right: the unbiased estimate of Chen et al.
    (2021, 2107.03374). Raises ValueError for a `k` beyond the samples.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} needs at least {k} samples of a question, there are {num_samples}")
    return 1.0 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


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


def _bootstrap_bounds(strata: Sequence[Sequence[float]], weights: Sequence[float], seed: int) -> tuple[float, float]:
    import numpy as np
    from scipy.stats import bootstrap

    def average(*samples: Any, axis: int) -> Any:
        return sum(weight * sample.mean(axis=axis) for weight, sample in zip(weights, samples, strict=True))

    # scipy wants two values of a set; drawing from one value is drawing from it twice.
    data = tuple(np.repeat(values, 2) if len(values) == 1 else np.asarray(values) for values in strata)
    bounds = bootstrap(
        data,
        average,
        vectorized=True,
        n_resamples=_NUM_RESAMPLES,
        batch=max(1, _SAMPLES_PER_BATCH // max(map(len, data))),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(bounds.low), float(bounds.high)


def _weights(strata: Sequence[Sequence[float]], weighting: Weighting) -> list[float]:
    """What one set counts in the average."""
    if not strata or not all(strata):
        raise ValueError("no values: an average needs at least one set, and at least one value in each")
    num_values = sum(map(len, strata))
    return [len(values) / num_values if weighting == "micro" else 1 / len(strata) for values in strata]


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
