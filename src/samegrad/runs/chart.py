"""A line chart as the numbers that an inline SVG needs; the page's style sheet gives it its colours.

It is drawn for a width of 420 units, so that its text can still be read where a telephone shows it on 340.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Chart", "Line", "make_chart"]

WIDTH, HEIGHT = 420.0, 260.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 16.0, 10.0, 36.0
_MANY = 40  # points; with more, marks for each would touch


@dataclass(frozen=True, slots=True)
class Line:
    """One series. color: which of the page's. pieces: its points as SVG has them, cut where there is no value.

    points: (x, y, what the point says). marked: whether each has a mark.
    """

    label: str
    color: int
    pieces: tuple[str, ...]
    points: tuple[tuple[float, float, str], ...]
    marked: bool


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines, and the places and texts of the ticks of both axes."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM


def make_chart(
    title: str,
    unit: str,
    series: Mapping[str, Mapping[int, float]],
    top: float | None = None,
    factor: float = 1.0,
    first_color: int = 0,
) -> Chart | None:
    """The chart of `series` (label -> epoch -> value times `factor`), from 0; None if there is no value at all.

    top: where the vertical axis ends at least. first_color: that of the first series.
    """
    scaled = {
        label: {epoch: factor * value for epoch, value in values.items() if math.isfinite(value)}
        for label, values in series.items()
    }
    epochs = [epoch for values in scaled.values() for epoch in values]
    if not epochs:
        return None
    found = [value for values in scaled.values() for value in values.values()]
    y_ticks = _ticks(min(0.0, *found), max(*found, top or 0.0, 1e-9), whole=False)
    low, high = y_ticks[0], y_ticks[-1]
    first, last = min(epochs) - 0.5, max(epochs) + 0.5

    def x(epoch: float) -> float:
        return round(_LEFT + (epoch - first) / (last - first) * (WIDTH - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM), 1)

    def line(color: int, label: str, values: Mapping[int, float], among: Sequence[int]) -> Line:
        points = tuple((x(at), y(values[at]), f"{label}, epoch {at}: {values[at]:.4g}{unit}") for at in sorted(values))
        pieces: list[str] = []
        piece: list[str] = []
        for at in among:  # an epoch without a value cuts the line
            if at in values:
                piece.append(f"{x(at)},{y(values[at])}")
            elif piece:
                pieces, piece = [*pieces, " ".join(piece)], []
        return Line(label, color, tuple([*pieces, " ".join(piece)] if piece else pieces), points, len(values) <= _MANY)

    return Chart(
        title,
        unit,
        tuple(
            line(color, label, scaled[label], sorted(series[label])) for color, label in enumerate(scaled, first_color)
        ),
        tuple((x(tick), f"{tick:.0f}") for tick in _ticks(min(epochs), max(epochs), whole=True)),
        tuple((y(tick), f"{tick:g}{unit}") for tick in y_ticks),
    )


def _ticks(low: float, high: float, whole: bool) -> list[float]:
    """Round numbers from just below `low` to just above `high`, about five steps; `whole`: integers, from within."""
    span = max(high - low, 1e-12)
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if span / (power * factor) <= 6)
    if whole:
        step = max(1.0, float(math.ceil(step)))
        return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
    start, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{step * place:.10g}") for place in range(start, max(end, start + 1) + 1)]
