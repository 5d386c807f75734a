"""The curves of a machine as a picture: latency by working set, bandwidth by threads, bandwidth by size of a piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from samegrad.output import save_figure
from samegrad.probing.record import Curve, Machine

__all__ = ["draw"]


def draw(machine: Machine, path: Path) -> None:
    """Draws `machine` into the file `path`: .png, .svg or .pdf. Raises ConfigurationError, OutputError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.6), dpi=120, layout="constrained")
    figure.suptitle(f"{machine.facts.get('processor', 'machine')}, {machine.facts.get('cores usable', '?')} cores")
    latency, threads, sizes = figure.subplots(1, 3)
    _plot(latency, [curve for curve in machine.curves if curve.unit == "s"], 1e9)
    latency.set(title="Latency", xlabel="bytes of the working set", ylabel="ns per load", yscale="log")
    for row in machine.rows:
        if row.unit == "B" and row.value is not None:
            latency.axvline(row.value.median, color="gray", linewidth=0.8, linestyle=":")
    _plot(threads, [curve for curve in machine.curves if curve.axis == "threads"], 1e-9)
    threads.set(title="Bandwidth by threads", xlabel="threads", ylabel="GB/s", yscale="log")
    by_size = [curve for curve in machine.curves if curve.axis == "bytes" and curve.unit == "B/s"]
    _plot(sizes, by_size, 1e-9)
    sizes.set(title="Bandwidth by size of a piece", xlabel="bytes of a piece or message", ylabel="GB/s", yscale="log")
    save_figure(figure, path)


def _plot(axes: Any, curves: list[Curve], factor: float) -> None:
    for number, curve in enumerate(curves):
        xs = [x for x, _ in curve.points]
        axes.fill_between(
            xs,
            [spread.lowest * factor for _, spread in curve.points],
            [spread.highest * factor for _, spread in curve.points],
            alpha=0.2,
            color=f"C{number}",
        )
        median = [spread.median * factor for _, spread in curve.points]
        axes.plot(xs, median, marker="o", markersize=3, label=curve.name, color=f"C{number}")
    axes.set_xscale("log", base=2)
    counts = sorted({x for curve in curves if curve.axis == "threads" for x, _ in curve.points})
    if counts:
        axes.set_xticks(counts, [f"{count:g}" for count in counts])
    else:
        axes.xaxis.set_major_formatter(lambda size, _: _binary(size))
    axes.xaxis.set_tick_params(labelsize=8)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    if curves:
        axes.legend(fontsize=8)


def _binary(size: float) -> str:
    """Working sets are powers of two: "64 KiB"."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size:g} B"
