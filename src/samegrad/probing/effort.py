"""How much is measured, and how often: quick, default or full."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from samegrad.timing import Spread

__all__ = ["EFFORTS", "Effort", "repeated"]


@dataclass(frozen=True, slots=True)
class Effort:
    """repetitions: of each figure.
    seconds: that one repetition takes at least, where what is measured can be done again and again.
    largest: bytes of the largest working set.
    growth: of working sets, from one to the next.
    file_bytes: of the file that storage is measured with.
    matrices: rows and columns of the square matrices that are multiplied.
    patience: seconds after which a group (memory, storage, ...) measures nothing more.
    """

    repetitions: int
    seconds: float
    largest: int
    growth: float
    file_bytes: int
    matrices: tuple[int, ...]
    patience: float = 30.0


EFFORTS: Mapping[str, Effort] = {
    "quick": Effort(3, 0.005, 1 << 26, 2.0, 1 << 25, (128, 512), 8.0),
    "default": Effort(5, 0.02, 1 << 28, 2**0.5, 1 << 28, (128, 512, 1024), 30.0),
    "full": Effort(9, 0.1, 1 << 30, 2**0.25, 1 << 30, (128, 256, 512, 1024, 2048), 300.0),
}
"""Name -> how much is done; in about 10 s, in less than a minute, in some minutes."""


def repeated(effort: Effort, value: Callable[[], float]) -> Spread:
    """`value()`, which is measured as often as `effort` says, after once that does not count."""
    value()
    return Spread.of(value() for _ in range(effort.repetitions))
