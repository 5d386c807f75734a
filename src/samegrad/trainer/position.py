"""How far a training has come."""

from __future__ import annotations

from dataclasses import dataclass, replace

from samegrad.errors import ConfigurationError

__all__ = ["OF_A_STREAM", "Position"]

OF_A_STREAM = 0
"""Stands for the length of an iterable data set, which nobody knows; no other data set is empty."""


@dataclass(frozen=True, slots=True)
class Position:
    """`steps` steps are done in all, `step` of them in `epoch`, on the first `example` examples of the epoch's order.

    length: of the data set (or `OF_A_STREAM`), where `fit` is in the middle of the epoch; else None.
    summed_loss, counted, seconds: those of the epoch's steps so far, for its report.
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

    def within(self, length: int) -> Position:
        """This position as one of `fit`, in an epoch over `length` examples; ConfigurationError if it was another."""
        if self.length is None:
            return Position(self.epoch, steps=self.steps, length=length)
        if self.length != length:
            raise ConfigurationError(
                f"fit: epoch {self.epoch} was begun with a data set of {_described(self.length)}; this one has "
                f"{_described(length)}. Go on with the same data"
            )
        return self

    def after(self, examples: int, summed_loss: float, counted: float, seconds: float) -> Position:
        """The position after one more step of `fit`."""
        return replace(
            self,
            step=self.step + 1,
            example=self.example + examples,
            steps=self.steps + 1,
            summed_loss=self.summed_loss + summed_loss,
            counted=self.counted + counted,
            seconds=self.seconds + seconds,
        )


def _described(length: int) -> str:
    return "unknown length" if length == OF_A_STREAM else f"{length} examples"
