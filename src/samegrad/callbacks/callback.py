"""The base of everything that listens to a training."""

from __future__ import annotations

from samegrad.callbacks.reports import EpochReport, SaveReport, StepReport
from samegrad.workers import context

__all__ = ["Callback", "is_first_rank"]


class Callback:
    """Is told what a training does, see `Trainer.fit(callbacks=...)`; override what you need.

    Every rank calls its own callbacks, alike; only `on_save` is called on rank 0 alone. The rest of the training waits
    meanwhile. An exception ends the training, on all ranks.
    """

    def on_step(self, report: StepReport) -> None:
        """A step is done."""

    def on_epoch(self, report: EpochReport) -> None:
        """An epoch is done and evaluated; it is not saved yet."""

    def on_save(self, report: SaveReport) -> None:
        """A checkpoint is complete; called between two steps."""

    def close(self) -> None:
        """`fit` has ended, or an error has ended it; a later `fit` may go on with this callback."""


def is_first_rank() -> bool:
    """Whether this process is rank 0, or is not part of a launch: whoever shows something does so once."""
    worker = context()
    return worker is None or worker.rank == 0
