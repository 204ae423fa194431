"""Several results on the same questions, one a seed: how far they spread, and what several samples reach together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from search_rl.errors import ConfigError
from search_rl.evaluation.outcomes import group
from search_rl.evaluation.results import Result
from search_rl.evaluation.statistics import Interval, mean_interval, pass_at
from search_rl.evaluation.summary import metric_name
from search_rl.evaluation.tables import new_table
from search_rl.profiles import Profile

if TYPE_CHECKING:
    from rich.table import Table

_SEED = "sampling.seed"


@dataclass(frozen=True, slots=True)
class SampledFigures:
    """One row. `pass_at` is by k; intervals are over questions, whose samples stay together.

    `never`, `sometimes` and `always` are shares of questions by how many of their samples are right.
    """

    mean: Interval
    pass_at: Mapping[int, Interval]
    never: float
    sometimes: float
    always: float


@dataclass(frozen=True, slots=True)
class Spread:
    """All results together. `deviation` is the sample standard deviation of the results' own means."""

    means: Mapping[str, float]
    deviation: float
    rows: Mapping[str, SampledFigures]
    profile: Profile


def spread_over(results: Sequence[Result]) -> Spread:
    """The spread of two results or more under the profile of the first, in its headline metric.

    Raises ConfigError for fewer, for one named twice, for results that were not asked the same questions, and where the
    protocols differ in more than the seed.
    """
    if len(results) < 2:
        raise ConfigError("a spread needs at least two results: name the folder of each seed")
    if len({result.folder.resolve() for result in results}) < len(results):
        raise ConfigError("a spread needs different results: a folder is named twice")
    first = results[0]
    for other in results[1:]:
        _check_alike(first, other)
    metric = first.profile.headline
    by_key = [{outcome.question.key: outcome for outcome in result.outcomes} for result in results]
    rows = {
        name: _figures([[found[it.question.key].score(metric) for found in by_key] for it in members])
        for name, members in group(first.outcomes).rows.items()
    }
    names = [result.name for result in results]
    if len(set(names)) < len(names):
        names = [str(result.folder) for result in results]
    means = [fmean(outcome.score(metric) for outcome in result.outcomes) for result in results]
    return Spread(dict(zip(names, means, strict=True)), stdev(means), rows, first.profile)


def spread_to_json(spread: Spread) -> dict[str, Any]:
    """The JSON form."""
    return {
        "profile": spread.profile.name,
        "metric": spread.profile.headline,
        "means": dict(spread.means),
        "deviation": spread.deviation,
        "rows": {name: asdict(figures) for name, figures in spread.rows.items()},
    }


def spread_table(spread: Spread) -> Table:
    """One row a data set or kind."""
    ks = list(next(iter(spread.rows.values())).pass_at)
    table = new_table(
        metric_name(spread.profile.headline),
        "n",
        "mean",
        "95 %",
        *(f"pass@{k}" for k in ks if k > 1),
        "never",
        "sometimes",
        "always",
    )
    for name, figures in spread.rows.items():
        table.add_row(
            name,
            str(figures.mean.n),
            f"{figures.mean.mean:.3f}",
            f"{figures.mean.low:.3f} to {figures.mean.high:.3f}",
            *(f"{found.mean:.3f}" for k, found in figures.pass_at.items() if k > 1),
            *(f"{share:.3f}" for share in (figures.never, figures.sometimes, figures.always)),
        )
    return table


def _figures(samples: Sequence[Sequence[float]]) -> SampledFigures:
    """`samples` holds the scores of each question."""
    num_samples = len(samples[0])
    num_right = [round(sum(scores)) for scores in samples]
    ks = sorted({2**power for power in range(num_samples.bit_length()) if 2**power <= num_samples} | {num_samples})
    return SampledFigures(
        mean=mean_interval([fmean(scores) for scores in samples]),
        pass_at={
            k: mean_interval([pass_at(k, num_right=right, num_samples=num_samples) for right in num_right]) for k in ks
        },
        never=fmean(right == 0 for right in num_right),
        sometimes=fmean(0 < right < num_samples for right in num_right),
        always=fmean(right == num_samples for right in num_right),
    )


def _check_alike(first: Result, other: Result) -> None:
    if {it.question.key for it in first.outcomes} != {it.question.key for it in other.outcomes}:
        raise ConfigError(f"{first.folder} and {other.folder} were not asked the same questions")
    if first.protocol is None or other.protocol is None:
        missing = first if first.protocol is None else other
        raise ConfigError(f"{missing.folder} has no protocol file, so nobody knows whether it was measured alike")
    unlike = [difference for difference in first.protocol.differences(other.protocol) if difference.name != _SEED]
    if unlike:
        raise ConfigError(f"{first.folder} and {other.folder} differ in more than the seed: {unlike[0]}")
