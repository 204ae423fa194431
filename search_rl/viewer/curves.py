"""Learning curves as a picture, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EXACT_MATCH_KEYS = ("reward/exact_match", "reward/total", "critic/score/mean")
_SEARCHES_KEYS = ("agent/searches_per_question",)
_TRAIN_COLOUR = "#1f5fa8"
_LEVEL_COLOURS = ("#8a8a8a", "#b36b00", "#2e8b57", "#8e4585")
_SMOOTHING_STEPS = 5
_LABEL_HEIGHT = 0.11
_STYLE: Mapping[str, Any] = {
    "font.size": 12,
    "axes.labelsize": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
}


@dataclass(frozen=True, slots=True)
class Level:
    """An evaluation to draw as a horizontal line: its mean with the bounds of its interval, all in 0 to 1."""

    name: str
    mean: float
    low: float
    high: float


def plot_learning_curve(metrics: Sequence[Mapping[str, Any]], levels: Sequence[Level], path: Path) -> None:
    """Write a PNG: exact match above and searches per question below, by training step.

    `metrics` are rows of metrics.jsonl. Steps without a figure are left out; no steps show the levels alone.
    """
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.style.context(dict(_STYLE)):
        figure = Figure(figsize=(10, 7), layout="constrained")
        FigureCanvasAgg(figure)
        upper, lower = figure.subplots(2, sharex=True, height_ratios=(2, 1))
        _draw_exact_match(upper, _series(metrics, _EXACT_MATCH_KEYS), levels)
        _draw_searches(lower, _series(metrics, _SEARCHES_KEYS))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def moving_mean(values: Sequence[float], width: int) -> list[float]:
    """The mean of the last `width` values at each place, of fewer at the beginning."""
    windows = (values[max(0, end - width) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]


def spread(heights: Sequence[float], *, least_gap: float) -> list[float]:
    """The heights in their order, each raised as little as keeps neighbours `least_gap` apart."""
    placed: dict[int, float] = {}
    floor = float("-inf")
    for index in sorted(range(len(heights)), key=lambda index: heights[index]):
        placed[index] = floor = max(heights[index], floor + least_gap)
    return [placed[index] for index in range(len(heights))]


def _series(metrics: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> tuple[list[int], list[float]]:
    """Steps and values of the first of `keys` that each row has."""
    points = [(int(row["step"]), float(row[key])) for row in metrics for key in [k for k in keys if k in row][:1]]
    return [step for step, _ in points], [value for _, value in points]


def _draw_exact_match(axes: Axes, series: tuple[list[int], list[float]], levels: Sequence[Level]) -> None:
    steps, values = series
    axes.plot(steps, values, "o", color=_TRAIN_COLOUR, alpha=0.45, label="training questions, one step")
    axes.plot(
        steps,
        moving_mean(values, _SMOOTHING_STEPS),
        color=_TRAIN_COLOUR,
        linewidth=2,
        label=f"training questions, mean of {_SMOOTHING_STEPS} steps",
    )
    _draw_levels(axes, levels)
    axes.set_ylabel("exact match\n(share of questions)")
    axes.set_ylim(-0.02, 1.02)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=11)


def _draw_levels(axes: Axes, levels: Sequence[Level]) -> None:
    """A line and a band for each level, named at the right edge."""
    heights = spread([level.mean for level in levels], least_gap=_LABEL_HEIGHT)
    for level, height, colour in zip(levels, heights, cycle(_LEVEL_COLOURS), strict=False):
        axes.axhspan(level.low, level.high, color=colour, alpha=0.15, linewidth=0)
        axes.axhline(level.mean, color=colour, linewidth=1.5, linestyle="--")
        axes.text(
            1.01,
            height,
            f"{level.name}\n{level.mean:.3f} [{level.low:.3f}, {level.high:.3f}]",
            transform=axes.get_yaxis_transform(),
            color=colour,
            fontsize=11,
            verticalalignment="center",
        )


def _draw_searches(axes: Axes, series: tuple[list[int], list[float]]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.plot(*series, "o-", color=_TRAIN_COLOUR, linewidth=2)
    axes.set_ylabel("searches\nper question")
    axes.set_xlabel("training step")
    axes.set_ylim(0, max(series[1], default=1.0) * 1.15)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", alpha=0.3)
