"""Events for TensorBoard. The package tensorboard is optional; torch writes the events with it."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samegrad.callbacks.callback import Callback, is_first_rank
from samegrad.callbacks.reports import EpochReport, StepReport
from samegrad.errors import ConfigurationError
from samegrad.output import output_error

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["TensorBoard", "check_tensorboard"]

_FLUSH_EVERY_S = 10


class TensorBoard(Callback):
    """Writes events into `folder`: open it with `tensorboard --logdir FOLDER`. Rank 0 writes.

    The horizontal axis of all curves counts steps, also where training was resumed. Every `every` steps: loss/step,
    learning_rate. Every epoch: loss/train, loss/test and the other metrics as NAME/test, samples_per_second, epoch.

    Whatever an earlier training has written into the folder from the first step of this one on is no longer shown: a
    resumed training goes on where it was saved, and one that begins anew replaces the one before. Raises
    ConfigurationError where the package tensorboard is not installed, OutputError if the folder cannot be written to.
    """

    def __init__(self, folder: str | Path, every: int = 10) -> None:
        if not isinstance(every, int) or every < 1:
            raise ConfigurationError(f"TensorBoard: every must be a number of steps of at least 1; got {every!r}")
        check_tensorboard("TensorBoard")
        self._folder, self._every = Path(folder), every
        self._writer: SummaryWriter | None = None

    def on_step(self, report: StepReport) -> None:
        """Writes the loss, now and then."""
        with self._writing(report.steps_done) as writer:
            if writer is not None and report.steps_done % self._every == 0:
                writer.add_scalar("loss/step", report.loss, report.steps_done)
                writer.add_scalar("learning_rate", report.lr, report.steps_done)

    def on_epoch(self, report: EpochReport) -> None:
        """Writes the figures of the epoch, and sees that all are in the file."""
        figures = {
            "loss/train": report.train_loss,
            **{f"{name}/test": value for name, value in report.metrics.items()},
            "samples_per_second": report.examples / report.seconds,
            "epoch": report.epoch + 1,
        }
        with self._writing(report.steps_done) as writer:
            if writer is not None:
                for name, value in figures.items():
                    writer.add_scalar(name, value, report.steps_done)
                writer.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            with self._writing(0):
                self._writer.close()
            self._writer = None

    @contextlib.contextmanager
    def _writing(self, step: int) -> Iterator[Any]:  # its methods have no types
        """The writer, made if needed, where this rank is the one that writes. step: the first one it is to write."""
        try:
            if self._writer is None and is_first_rank():
                from torch.utils.tensorboard import SummaryWriter

                self._writer = SummaryWriter(str(self._folder), purge_step=step, flush_secs=_FLUSH_EVERY_S)
            yield self._writer
        except OSError as error:
            raise output_error(self._folder, error) from error


def check_tensorboard(who: str) -> None:
    """Raises ConfigurationError, on behalf of `who`, if the package tensorboard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigurationError(
            f"{who}: expected the package tensorboard, which is not installed. Install it: "
            f"pip install 'samegrad[tensorboard]', or pip install tensorboard"
        )
