"""Loss and accuracy of a run by epoch, drawn as a PNG. Needs no torch, no display, and no state of matplotlib's.

matplotlib takes a while to import, so it is imported when something is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samegrad.files import write_atomically
from samegrad.trainer.run_files import output_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_curves"]

_TRAIN, _TEST = "tab:blue", "tab:orange"
_MANY = 30  # epochs; with more, marks for each would touch


def draw_curves(epochs: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draws the records `epochs`, lines of metrics.jsonl, to the PNG file `path`. Raises OutputError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), dpi=120, layout="constrained")
    losses, accuracies = figure.subplots(1, 2)
    numbers = [record["epoch"] for record in epochs]
    train, test = ([_number(record[name]) for record in epochs] for name in ("train_loss", "test_loss"))
    _draw(losses, numbers, train, "train", _TRAIN)
    _draw(losses, numbers, test, "test", _TEST)
    losses.set(title=f"Loss: train {train[-1]:.3g}, test {test[-1]:.3g} at the end", ylabel="loss")
    losses.set_ylim(0, 1.05 * max((loss for loss in [*train, *test] if loss > 0), default=1.0))
    losses.legend()
    percent = [100 * record["test_accuracy"] for record in epochs]
    _draw(accuracies, numbers, percent, "test", _TEST)
    accuracies.set(title=f"Test accuracy: {percent[-1]:.1f} % at the end", ylabel="percent", ylim=(0, 102))
    figure.suptitle(title)
    image = io.BytesIO()
    FigureCanvasAgg(figure).print_png(image)  # type: ignore[no-untyped-call]
    try:
        write_atomically(path, image.getvalue())
    except OSError as error:
        raise output_error(path, error) from error


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _draw(axes: Axes, epochs: Sequence[int], values: Sequence[float], label: str, color: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.plot(epochs, values, label=label, color=color, marker="o" if len(epochs) <= _MANY else "", markersize=4)
    axes.set_xlabel("epoch")
    axes.set_xlim(epochs[0] - 0.5, epochs[-1] + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
