"""A prediction file as a profile scores it: as values, as JSON and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from search_rl.datasets.predictions import Prediction, PredictionFile
from search_rl.evaluation.statistics import Interval, mean_interval
from search_rl.evaluation.summary import metric_name
from search_rl.evaluation.tables import new_table
from search_rl.profiles import METRICS, Metric, Profile, Scores

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class ScoredPredictions:
    """One `Scores` a prediction in file order, and the mean of each metric over all of them."""

    profile: Profile
    predictions: tuple[Prediction, ...]
    scores: tuple[Scores, ...]
    means: Mapping[Metric, Interval]
    num_bad: int

    @property
    def num_missing(self) -> int:
        """Rows without a prediction: each counts 0."""
        return sum(prediction.text is None for prediction in self.predictions)

    @property
    def headline(self) -> str:
        """One line: what the figures lack, then the figure that the profile's source reports."""
        metric = self.profile.headline
        return (
            f"{self._warning}{metric_name(metric)} {self.means[metric]}, {len(self.scores)} rows, "
            f"profile {self.profile.name}"
        )

    @property
    def _warning(self) -> str:
        num_rows = len(self.scores)
        missing = f"{self.num_missing} of {num_rows} predictions missing, counted 0" if self.num_missing else ""
        bad = f"{self.num_bad} of {num_rows + self.num_bad} rows bad, left out" if self.num_bad else ""
        warnings = "; ".join(part for part in (missing, bad) if part)
        return f"{warnings}: " if warnings else ""


def score_predictions(file: PredictionFile, profile: Profile) -> ScoredPredictions:
    """The scores of a file. Raises ValueError for one without predictions."""
    scores = tuple(profile.scores(row.text, row.golden_answers) for row in file.predictions)
    means = {metric: mean_interval([getattr(row, metric) for row in scores]) for metric in METRICS}
    return ScoredPredictions(profile, file.predictions, scores, means, num_bad=len(file.bad_rows))


def scored_to_json(scored: ScoredPredictions) -> dict[str, Any]:
    """The JSON form; what the figures lack comes first."""
    return {
        "headline": scored.headline,
        "profile": scored.profile.name,
        "num_rows": len(scored.scores),
        "num_missing": scored.num_missing,
        "num_bad": scored.num_bad,
        "means": {metric: asdict(mean) for metric, mean in scored.means.items()},
        "rows": [
            {"id": prediction.id, "is_missing": prediction.text is None, **asdict(scores)}
            for prediction, scores in zip(scored.predictions, scored.scores, strict=True)
        ],
    }


def row_lines(scored: ScoredPredictions) -> list[str]:
    """A heading, then a line a prediction. Plain text: a table of many rows is slow to lay out."""
    ids = [_printable(prediction.id) for prediction in scored.predictions]
    width = max(len("id"), *map(len, ids))
    heading = f"{'id':<{width}}  {'EM':>5}  {'F1':>5}  {'cover':>5}  {'token cover':>11}"
    return [heading] + [
        f"{identifier:<{width}}  {row.exact_match:5.3f}  {row.f1:5.3f}  {row.cover_exact_match:5.3f}  "
        f"{row.token_cover_exact_match:11.3f}{'  no prediction' if prediction.text is None else ''}"
        for identifier, row, prediction in zip(ids, scored.scores, scored.predictions, strict=True)
    ]


def means_table(scored: ScoredPredictions) -> Table:
    """One row a metric."""
    table = new_table(f"profile {scored.profile.name}", "mean", "95 %")
    for metric, mean in scored.means.items():
        table.add_row(metric_name(metric), f"{mean.mean:.3f}", f"{mean.low:.3f} to {mean.high:.3f}")
    return table


def _printable(identifier: str) -> str:
    """The id on one line and without control characters."""
    return identifier if identifier.isprintable() else ascii(identifier)
