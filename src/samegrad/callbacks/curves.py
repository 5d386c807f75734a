"""Loss and accuracy by epoch, drawn as a PNG. Needs no torch, no display, and no state of matplotlib's.

matplotlib takes a while to import, so it is imported when something is drawn.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samegrad.callbacks.callback import Callback, is_first_rank
from samegrad.callbacks.metrics_file import METRICS, read_metrics
from samegrad.callbacks.reports import EpochReport
from samegrad.errors import OutputError
from samegrad.output import write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["CURVES", "Curves", "draw_curves"]

CURVES = "curves.png"

_TRAIN, _TEST = "tab:blue", "tab:orange"
_MANY = 30  # epochs; with more, marks for each would touch
_SPARING = 20  # draws only when so many times the time of a drawing have passed


class Curves(Callback):
    """Draws `curves.png` in `folder` after each epoch, from the `metrics.jsonl` there; rank 0 draws.

    So a `MetricsFile` for the same folder has to be told before it. Where epochs are short it leaves some out, to take
    5 % of the time at most; the last one is drawn when `fit` ends. Raises OutputError.
    """

    def __init__(self, folder: str | Path, title: str = "") -> None:
        self._folder, self._title = Path(folder), title
        self._epochs = 0  # that are still to be drawn
        self._again_at = float("-inf")

    def on_epoch(self, report: EpochReport) -> None:
        """Draws, unless it has just done so."""
        self._epochs = report.epoch + 1
        if time.monotonic() >= self._again_at:
            self.close()

    def close(self) -> None:
        """Draws what is not drawn yet."""
        if self._epochs == 0 or not is_first_rank():
            return
        start = time.monotonic()
        records = read_metrics(self._folder, self._epochs)
        if not records:
            raise OutputError(
                f"curves: expected {self._folder / METRICS} to draw from; there is none, or nothing in it. List a "
                f"MetricsFile of this folder before Curves"
            )
        self._epochs = 0
        draw_curves(records, self._folder / CURVES, self._title)
        now = time.monotonic()
        self._again_at = now + _SPARING * (now - start)


def draw_curves(epochs: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draws the records `epochs`, lines of metrics.jsonl, to the PNG file `path`. Raises OutputError.

    Losses stand on one pair of axes, accuracy on another; without accuracies there is one pair.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    image = io.BytesIO()
    FigureCanvasAgg(_figure(epochs, title)).print_png(image)  # type: ignore[no-untyped-call]
    write_output(path, image.getvalue())


def _figure(epochs: Sequence[Mapping[str, Any]], title: str) -> Figure:
    from matplotlib.figure import Figure

    numbers = [record["epoch"] for record in epochs]
    train, test, accuracy = (
        [_number(record.get(name)) for record in epochs] for name in ("train_loss", "test_loss", "test_accuracy")
    )
    has_accuracy = any(value == value for value in accuracy)
    figure = Figure(figsize=(10, 4.2) if has_accuracy else (6, 4.2), dpi=120, layout="constrained")
    losses, *others = figure.subplots(1, 1 + has_accuracy, squeeze=False)[0]
    _draw(losses, numbers, {"train": train, "test": test})
    losses.set(title=f"Loss at the end: {_ends({'train': train, 'test': test})}", ylabel="mean loss per example")
    finite = [loss for loss in [*train, *test] if loss < float("inf")]
    lowest, highest = min(finite, default=0.0), max(finite, default=1.0)
    losses.set_ylim(min(0.0, 1.05 * lowest), 1.05 * highest if highest > 0 else 1.0)
    for axes in others:
        percent = [100 * value for value in accuracy]
        best = max((value for value in percent if value == value), default=0.0)
        _draw(axes, numbers, {"test": percent})
        axes.set(title=f"Test accuracy: {percent[-1]:.1f} % at the end, best {best:.1f} %", ylabel="accuracy in %")
        axes.set_ylim(*_percent_limits(percent))
    figure.suptitle(title, fontweight="bold")
    return figure


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _ends(series: Mapping[str, Sequence[float]]) -> str:
    return ", ".join(f"{name} {values[-1]:.3g}" for name, values in series.items() if values[-1] == values[-1])


def _percent_limits(percent: Sequence[float]) -> tuple[float, float]:
    """From 0 to 100, or, where all is in the upper part, only that."""
    low = min((value for value in percent if value == value), default=0.0)
    start = 10 * int(max(low - 5, 0) / 10)
    return start, 100 + (100 - start) / 50


def _draw(axes: Axes, epochs: Sequence[int], series: Mapping[str, Sequence[float]]) -> None:
    from matplotlib.ticker import MaxNLocator

    for label, values in series.items():
        if any(value == value for value in values):
            color = _TRAIN if label == "train" else _TEST
            axes.plot(
                epochs, values, label=label, color=color, marker="o" if len(epochs) <= _MANY else "", markersize=4
            )
    axes.set_xlabel("epoch")
    axes.set_xlim(epochs[0] - 0.5, epochs[-1] + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    axes.legend()
