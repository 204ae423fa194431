"""A run as a picture: queries per second and latency by load, drawn without a display."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from retriever_server.bench.throughput import LoadPoint, ServerName, Throughput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS: dict[ServerName, str] = {"service": "#1f5fa8", "reference": "#b36b00"}


def draw_throughput(measured: Throughput, path: Path) -> None:
    """Write a PNG: queries per second above, with the bare batched search as a line, latencies below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, sharex=True)
    bare = measured.bare.batched_queries_per_second
    upper.axhline(bare, color="#8a8a8a", linestyle="--", label=f"bare search, all at once: {bare:.0f} q/s")
    for run in (measured.service, measured.reference):
        if run is not None:
            _draw(upper, lower, run.points)
    upper.set_title(_title(measured), loc="left", fontsize=11)
    upper.set_ylabel("queries per second")
    lower.set_ylabel("latency, p50 to p99 (ms)")
    lower.set_xlabel("clients x queries a request")
    for axes in (upper, lower):
        axes.set_yscale("log")
        axes.grid(axis="y", alpha=0.3)
    upper.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _draw(upper: Axes, lower: Axes, points: tuple[LoadPoint, ...]) -> None:
    names = [str(point.load) for point in points]
    colour = _COLOURS[points[0].server]
    upper.plot(names, [point.queries_per_second for point in points], "o-", color=colour, label=points[0].server)
    lower.plot(names, [1000 * point.p50_seconds for point in points], "o-", color=colour)
    lows, highs = zip(*((1000 * point.p50_seconds, 1000 * point.p99_seconds) for point in points), strict=True)
    lower.fill_between(names, lows, highs, color=colour, alpha=0.15, linewidth=0)


def _title(measured: Throughput) -> str:
    dense = measured.manifest.dense
    assert dense is not None
    how = f"queries encoded by {dense.encoder.name}" if measured.is_encoding else "queries encoded beforehand"
    return f"{measured.manifest.num_passages:,} x {dense.encoder.dimension}, {dense.kind}, {how}"
