"""One thing to measure: what it is, and how."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from samegrad.probing.effort import Effort, repeated
from samegrad.timing import Spread, Synchronizes, synchronize

__all__ = ["Task", "Tasks", "per_call"]


@dataclass(frozen=True, slots=True)
class Task:
    """A row of the table, or a point of a curve.

    name: of the row, or of the curve.
    unit: of what `run` returns: "s", "B/s", "FLOP/s", "B" or "x" (a ratio).
    run: measures; what it raises is said in place of the figure.
    x: where the point is on its curve, None for a row.
    axis: what `x` is: "bytes" or "threads".
    note: under what conditions, in a few words.
    """

    name: str
    unit: str
    run: Callable[[], Spread]
    x: float | None = None
    axis: str = "bytes"
    note: str = ""


Tasks = AbstractContextManager[list[Task]]
"""What a group measures, in this order; leaving it removes what was made for it."""


def per_call(effort: Effort, call: Callable[[], object], device: str | Synchronizes = "cpu") -> Spread:
    """Seconds of one call, from as many in a row as take the time of a repetition."""
    call()
    count = 1
    while True:
        elapsed = _seconds(call, count, device)
        if elapsed >= effort.seconds / 4 or count >= 1 << 24:
            break
        count *= 4
    count = max(1, int(count * effort.seconds / max(elapsed, 1e-9)))
    return repeated(effort, lambda: _seconds(call, count, device) / count)


def _seconds(call: Callable[[], object], count: int, device: str | Synchronizes) -> float:
    synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        call()
    synchronize(device)
    return time.perf_counter() - start
