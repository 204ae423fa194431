"""The pictures of a report, as SVG, drawn without a display."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_rl.evaluation.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#1f5fa8", "#b36b00")
_STYLE: Mapping[str, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "search-rl",
}
_WIDTH_INCHES = 8.0
_TOP_INCHES, _BOTTOM_INCHES = 0.4, 0.4
_ROW_INCHES = 0.42
_CHARACTER_INCHES = 0.1
_MOST_CHARACTERS = 45
_BAR_HEIGHT = 0.36


def interval_bars(series: Mapping[str, Mapping[str, Interval]]) -> str:
    """Horizontal bars from 0 to 1 with their 95 % intervals: a colour a series, a group of bars a row.

    All series hold the same rows.
    """
    rows = list(next(iter(series.values())))
    counts = [next(iter(series.values()))[row].n for row in rows]
    names = [f"{row}  (n = {count})" for row, count in zip(rows, counts, strict=True)]

    def draw(axes: Axes) -> None:
        for place, (name, intervals) in enumerate(series.items()):
            offset = (place - (len(series) - 1) / 2) * _BAR_HEIGHT
            _draw_bars(axes, [intervals[row] for row in rows], offset, _COLOURS[place % len(_COLOURS)], name)
        axes.set_xlim(0, 1)
        if len(series) > 1:
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(series), frameon=False)

    return _svg(draw, names, bars_per_row=len(series))


def count_bars(counts: Mapping[str, int]) -> str:
    """Horizontal bars of counts, each with its number."""

    def draw(axes: Axes) -> None:
        bars = axes.barh(range(len(counts)), list(counts.values()), height=0.6, color=_COLOURS[0])
        axes.bar_label(bars, padding=4)
        axes.margins(x=0.12)

    return _svg(draw, list(counts), bars_per_row=1)


def _draw_bars(axes: Axes, intervals: Sequence[Interval], offset: float, colour: str, name: str) -> None:
    places = [place + offset for place in range(len(intervals))]
    means = [interval.mean for interval in intervals]
    below = [max(interval.mean - interval.low, 0.0) for interval in intervals]
    above = [max(interval.high - interval.mean, 0.0) for interval in intervals]
    axes.barh(places, means, height=_BAR_HEIGHT, color=colour, alpha=0.85, label=name)
    axes.errorbar(means, places, xerr=(below, above), fmt="none", ecolor="#222222", elinewidth=1.2, capsize=3)


def _svg(draw: Callable[[Axes], None], names: Sequence[str], *, bars_per_row: int) -> str:
    """A figure with a named row for each bar or group; margins are reckoned, for measuring them draws all twice."""
    import matplotlib.style
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    names = [name if len(name) <= _MOST_CHARACTERS else f"{name[: _MOST_CHARACTERS - 1]}…" for name in names]
    height = _TOP_INCHES + _BOTTOM_INCHES + _ROW_INCHES * len(names) * bars_per_row
    left = 0.2 + _CHARACTER_INCHES * max(map(len, names))
    with matplotlib.style.context(dict(_STYLE)):
        figure = Figure(figsize=(_WIDTH_INCHES, height))
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        figure.subplots_adjust(
            left=left / _WIDTH_INCHES, right=0.97, top=1 - _TOP_INCHES / height, bottom=_BOTTOM_INCHES / height
        )
        draw(axes)
        # A dollar sign would begin a formula, which a name may hold by chance.
        axes.set_yticks(range(len(names)), [name.replace("$", r"\$") for name in names])
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
