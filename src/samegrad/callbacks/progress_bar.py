"""A progress bar on the terminal, and a line per epoch above it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from samegrad.callbacks.callback import Callback, is_first_rank
from samegrad.callbacks.reports import EpochReport, StepReport
from samegrad.callbacks.step_sums import StepSums
from samegrad.units import format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

__all__ = ["ProgressBar", "epoch_line"]

_REFRESH_EVERY_S = 0.05


class ProgressBar(Callback):
    """Epoch, step, loss, samples/s and remaining time while `fit` runs; leaves one line per epoch behind.

    console: where, stderr by default. Shows nothing where that is no terminal, and on other ranks than rank 0.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._begin()

    def _begin(self) -> None:
        self._sums = StepSums(_REFRESH_EVERY_S)
        self._since_s: float | None = None
        self._done_before = 0.0

    def show(self, text: str) -> None:
        """Shows the bar with `text` only, as long as there is no step to tell of."""
        bar = self._started()
        if bar is not None and self._task is not None:
            bar.update(self._task, description=text, refresh=True)

    def on_step(self, report: StepReport) -> None:
        """Moves on."""
        summed = self._sums.add(report)
        bar = None if summed is None else self._started()
        if summed is None or bar is None or self._task is None:
            return
        left = ""
        if report.steps is not None:
            done, now = (report.epoch + (report.step + 1) / report.steps) / report.epochs, time.monotonic()
            if self._since_s is None:
                self._since_s = now - report.seconds
                self._done_before = done - 1 / report.steps / report.epochs
            left = f", {_clock((now - self._since_s) / (done - self._done_before) * (1 - done))} left"
        bar.update(
            self._task,
            description=f"epoch {report.epoch + 1}/{report.epochs}",
            completed=report.step + 1,
            total=report.steps,
            facts=f"loss {report.loss:.4f}  {format_count(summed.examples / summed.seconds)} samples/s{left}",
            refresh=True,
        )

    def on_epoch(self, report: EpochReport) -> None:
        """Leaves a line."""
        bar = self._started()
        if bar is not None:
            bar.console.print(epoch_line(report), soft_wrap=True, markup=False, highlight=False)

    def close(self) -> None:
        """Takes the bar away and gives the terminal back."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._begin()

    def _started(self) -> Progress | None:
        """The bar, if there is to be one."""
        if self._bar is None and is_first_rank():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._console = self._console or Console(stderr=True)
            if self._console.is_terminal and not self._console.is_dumb_terminal:
                columns = (
                    TextColumn("{task.description}", markup=False),
                    BarColumn(bar_width=None),
                    TextColumn("{task.fields[facts]}", markup=False),
                )
                self._bar = Progress(*columns, console=self._console, auto_refresh=False, transient=True, expand=True)
                self._task = self._bar.add_task("starting", total=None, facts="")
                self._bar.start()
        return self._bar


def epoch_line(report: EpochReport) -> str:
    """Losses, metrics and time of an epoch in one line."""
    width, metrics = len(str(report.epochs)), dict(report.metrics)
    parts = [f"epoch {report.epoch + 1:{width}}/{report.epochs}", f"train loss {_number(report.train_loss)}"]
    if "loss" in metrics:
        parts.append(f"test loss {_number(metrics.pop('loss'))}")
    if "accuracy" in metrics:
        parts.append(f"test accuracy {100 * metrics.pop('accuracy'):4.1f} %")
    parts += [f"test {name} {_number(value)}" for name, value in metrics.items()]
    return "  ".join([*parts, format_seconds(report.seconds)])


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < float("inf") else "not finite"


def _clock(seconds: float) -> str:
    """A rough time to go: "0:07", "12:30", "1:02:00"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
