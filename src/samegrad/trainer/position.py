"""How far a training has come."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Position"]


@dataclass(frozen=True, slots=True)
class Position:
    """`steps` steps are done in all, `step` of them in `epoch`, on the first `example` examples of the epoch's order.

    length: of the data set, where `fit` is in the middle of the epoch; else None. summed_loss, counted, seconds: those
    of the epoch's steps so far, for its report.
    """

    epoch: int = 0
    step: int = 0
    example: int = 0
    steps: int = 0
    length: int | None = None
    summed_loss: float = 0.0
    counted: float = 0.0
    seconds: float = 0.0

    def next_epoch(self) -> Position:
        """The start of the epoch after this one."""
        return Position(self.epoch + 1, steps=self.steps)
