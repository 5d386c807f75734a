"""Loss and accuracy of several runs on the same axes, as a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samegrad.output import save_figure
from samegrad.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

__all__ = ["draw_runs"]

_MANY = 30  # epochs; with more, marks for each would touch


def draw_runs(runs: Sequence[Run], path: Path) -> None:
    """Draws train loss (dashed), test loss and test accuracy of `runs` by epoch. Raises OutputError."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(11, 4.8), dpi=120, layout="constrained")
    losses, accuracies = figure.subplots(1, 2)
    lines: list[Line2D] = []
    for place, run in enumerate(runs):
        numbers = [epoch["epoch"] for epoch in run.epochs]
        look: dict[str, Any] = {"color": f"C{place % 10}", "marker": "o" if len(numbers) <= _MANY else ""}
        losses.plot(numbers, _values(run, "train_loss"), "--", markersize=3, **look)
        lines += losses.plot(numbers, _values(run, "test_loss"), markersize=3, **look)
        accuracies.plot(numbers, [100 * value for value in _values(run, "test_accuracy")], markersize=3, **look)
    losses.set(title="Loss: test (solid) and train (dashed)", ylabel="mean loss per example")
    found = [value for run in runs for name in ("train_loss", "test_loss") for value in _values(run, name)]
    if all(value >= 0 for value in found if not math.isnan(value)):
        losses.set_ylim(bottom=0)
    accuracies.set(title="Test accuracy", ylabel="accuracy in %")
    for axes in (losses, accuracies):
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.3)
    names = [run.folder.replace("$", r"\$") for run in runs]  # which would begin a formula
    figure.legend(lines, names, loc="outside lower center", ncols=min(len(runs), 3), frameon=False)
    save_figure(figure, path)


def _values(run: Run, figure: str) -> list[float]:
    return [math.nan if epoch.get(figure) is None else epoch[figure] for epoch in run.epochs]
