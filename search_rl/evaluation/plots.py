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
_ROW_INCHES = 0.42
_BAR_HEIGHT = 0.36


def interval_bars(series: Mapping[str, Mapping[str, Interval]], *, label: str = "") -> str:
    """Horizontal bars from 0 to 1 with their 95 % intervals: a colour a series, a group of bars a row.

    All series hold the same rows. `label` says what the rows are.
    """
    rows = list(next(iter(series.values())))

    def draw(axes: Axes) -> None:
        for place, (name, intervals) in enumerate(series.items()):
            offset = (place - (len(series) - 1) / 2) * _BAR_HEIGHT
            _draw_bars(axes, [intervals[row] for row in rows], offset, _COLOURS[place % len(_COLOURS)], name)
        counts = [next(iter(series.values()))[row].n for row in rows]
        _label_rows(axes, [f"{row}  (n = {count})" for row, count in zip(rows, counts, strict=True)], label)
        axes.set_xlim(0, 1)
        if len(series) > 1:
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(series), frameon=False)

    return _svg(draw, num_rows=len(rows) * max(1, len(series)))


def count_bars(counts: Mapping[str, int]) -> str:
    """Horizontal bars of counts, each with its number."""

    def draw(axes: Axes) -> None:
        bars = axes.barh(range(len(counts)), list(counts.values()), height=0.6, color=_COLOURS[0])
        axes.bar_label(bars, padding=4)
        axes.margins(x=0.12)
        _label_rows(axes, list(counts), "")

    return _svg(draw, num_rows=len(counts))


def _draw_bars(axes: Axes, intervals: Sequence[Interval], offset: float, colour: str, name: str) -> None:
    places = [place + offset for place in range(len(intervals))]
    means = [interval.mean for interval in intervals]
    below = [max(interval.mean - interval.low, 0.0) for interval in intervals]
    above = [max(interval.high - interval.mean, 0.0) for interval in intervals]
    axes.barh(places, means, height=_BAR_HEIGHT, color=colour, alpha=0.85, label=name)
    axes.errorbar(means, places, xerr=(below, above), fmt="none", ecolor="#222222", elinewidth=1.2, capsize=3)


def _label_rows(axes: Axes, names: Sequence[str], label: str) -> None:
    # A dollar sign would begin a formula, which a name may hold by chance.
    axes.set_yticks(range(len(names)), [name.replace("$", r"\$") for name in names])
    axes.invert_yaxis()
    axes.set_ylabel(label)
    axes.grid(axis="x", alpha=0.3)


def _svg(draw: Callable[[Axes], None], *, num_rows: int) -> str:
    import matplotlib.style
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.style.context(dict(_STYLE)):
        figure = Figure(figsize=(8, 1.1 + _ROW_INCHES * num_rows), layout="tight")
        FigureCanvasSVG(figure)
        draw(figure.subplots())
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
