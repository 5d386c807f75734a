"""The plot of an experiment as a file. Needs no torch, no display, and no state of matplotlib's."""

from __future__ import annotations

from pathlib import Path

from samegrad.bench.result import Result
from samegrad.output import save_figure

__all__ = ["write_plot"]


def write_plot(result: Result, path: Path) -> None:
    """Draws `result` into the file `path`. Raises OutputError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), dpi=120, layout="constrained")
    figure.suptitle(result.title)
    result.draw(figure)
    save_figure(figure, path)
