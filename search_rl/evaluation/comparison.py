"""Two results on the same questions: what changed, and whether chance explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from search_rl.errors import ConfigError
from search_rl.evaluation.outcomes import Outcome, group, paired
from search_rl.evaluation.protocol import Difference
from search_rl.evaluation.results import Result
from search_rl.evaluation.statistics import (
    Interval,
    PairedTest,
    Weighting,
    bootstrap_interval,
    holm,
    paired_test,
)
from search_rl.evaluation.summary import average_choices, average_name, is_quotable, metric_name
from search_rl.evaluation.tables import new_table
from search_rl.profiles import Metric, Profile

if TYPE_CHECKING:
    from rich.table import Table

_NUM_SHOWN = 3

Pair = tuple[Outcome, Outcome]


@dataclass(frozen=True, slots=True)
class PairedFigures:
    """The second result against the first on the same questions.

    `test` is of the profile's headline metric; `holm_p_value` is its p-value among those of all data sets, None where
    the row is no data set. `f1_difference` comes from a paired bootstrap.
    """

    test: PairedTest
    holm_p_value: float | None
    f1_difference: Interval


@dataclass(frozen=True, slots=True)
class AverageDifference:
    """How an average over data sets moved, from a paired bootstrap inside each."""

    headline: Interval
    f1: Interval


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two results; `differences` are the rules they were not measured alike in, empty unless that was forced.

    `warnings` say what the figures lack, first of all whether either result is valid.
    """

    first: str
    second: str
    profile: Profile
    rows: Mapping[str, PairedFigures]
    averages: Mapping[str, AverageDifference]
    warnings: tuple[str, ...]
    differences: tuple[Difference, ...]


def compare_results(first: Result, second: Result, *, is_forced: bool = False) -> Comparison:
    """The comparison under the second result's profile, on the questions that both hold.

    Both must have been scored by one profile (see `load_result`). Raises ConfigError where the protocols are not alike,
    or where one is missing, unless forced; and, always, where the two share no question.
    """
    differences = _differences(first, second)
    if not is_forced:
        _check_alike(first, second, differences)
    pairs = paired(first.outcomes, second.outcomes)
    if not pairs:
        raise ConfigError(f"{first.folder} and {second.folder} share no question: nothing can be paired")
    metric = second.profile.headline
    earlier = {before.question.key: (before, after) for before, after in pairs}
    groups = group(after for _, after in pairs)
    by_row = {name: [earlier[it.question.key] for it in members] for name, members in groups.rows.items()}
    return Comparison(
        first=first.name,
        second=second.name,
        profile=second.profile,
        rows=_with_holm({name: _figures(members, metric) for name, members in by_row.items()}, groups.strata),
        averages={
            average_name(weighting, names): _average([by_row[name] for name in names], weighting, metric)
            for weighting, names in average_choices(groups)
        },
        warnings=_warnings(first, second, len(pairs)),
        differences=differences,
    )


def comparison_to_json(comparison: Comparison) -> dict[str, Any]:
    """The JSON form; what the figures lack comes first."""
    return {
        "warnings": list(comparison.warnings),
        "protocol_differences": [asdict(difference) for difference in comparison.differences],
        "first": comparison.first,
        "second": comparison.second,
        "profile": comparison.profile.name,
        "metric": comparison.profile.headline,
        "rows": {name: asdict(figures) for name, figures in comparison.rows.items()},
        "averages": {name: asdict(average) for name, average in comparison.averages.items()},
    }


def comparison_table(comparison: Comparison) -> Table:
    """One row a data set or kind, then the averages; differences are second less first."""
    metric = metric_name(comparison.profile.headline)
    table = new_table(f"{metric}", "n", "won", "lost", "difference", "95 %", "p (McNemar)", "p (Holm)", "F1", "95 %")
    for name, figures in comparison.rows.items():
        test = figures.test
        holm_p = "" if figures.holm_p_value is None else f"{figures.holm_p_value:.2g}"
        counts = (str(test.difference.n), str(test.wins), str(test.losses))
        table.add_row(
            name, *counts, *_cells(test.difference), f"{test.p_value:.2g}", holm_p, *_cells(figures.f1_difference)
        )
    table.add_section()
    for name, average in comparison.averages.items():
        cells = _cells(average.headline), _cells(average.f1)
        table.add_row(name, str(average.headline.n), "", "", *cells[0], "", "", *cells[1])
    return table


def _cells(interval: Interval) -> tuple[str, str]:
    return f"{interval.mean:+.3f}", f"{interval.low:+.3f} to {interval.high:+.3f}"


def _differences(first: Result, second: Result) -> tuple[Difference, ...]:
    if first.protocol is None or second.protocol is None:
        return ()
    return first.protocol.differences(second.protocol)


def _check_alike(first: Result, second: Result, differences: Sequence[Difference]) -> None:
    for result in (first, second):
        if result.protocol is None:
            raise ConfigError(
                f"{result.folder} has no protocol file, so nobody knows whether it was measured alike: "
                "--force compares all the same"
            )
    if differences:
        shown = "; ".join(map(str, differences[:_NUM_SHOWN]))
        more = f"; and {len(differences) - _NUM_SHOWN} more" if len(differences) > _NUM_SHOWN else ""
        raise ConfigError(
            f"{first.folder} and {second.folder} were not measured alike ({shown}{more}): "
            "--force compares all the same and tells every difference"
        )


def _figures(pairs: Sequence[Pair], metric: Metric) -> PairedFigures:
    test = paired_test([before.score(metric) for before, _ in pairs], [after.score(metric) for _, after in pairs])
    return PairedFigures(test, None, bootstrap_interval([_gaps(pairs, "f1")]))


def _with_holm(rows: Mapping[str, PairedFigures], strata: Mapping[str, Any]) -> dict[str, PairedFigures]:
    adjusted = holm({name: rows[name].test.p_value for name in strata})
    return {name: replace(figures, holm_p_value=adjusted.get(name)) for name, figures in rows.items()}


def _average(strata: Sequence[Sequence[Pair]], weighting: Weighting, metric: Metric) -> AverageDifference:
    return AverageDifference(
        headline=bootstrap_interval([_gaps(pairs, metric) for pairs in strata], weighting),
        f1=bootstrap_interval([_gaps(pairs, "f1") for pairs in strata], weighting),
    )


def _gaps(pairs: Sequence[Pair], metric: Metric) -> list[float]:
    return [after.score(metric) - before.score(metric) for before, after in pairs]


def _warnings(first: Result, second: Result, num_pairs: int) -> tuple[str, ...]:
    found = []
    for result in (first, second):
        num_failed = sum(outcome.is_failed for outcome in result.outcomes)
        if not is_quotable(num_failed, len(result.outcomes)):
            found.append(f"{result.name} is NOT VALID: {num_failed} of {len(result.outcomes)} questions failed")
        if result.protocol is None:
            found.append(f"{result.name} has no protocol file")
        if alone := len(result.outcomes) - num_pairs:
            found.append(f"{alone} questions of {result.name} are in no pair and left out")
    return tuple(found)
