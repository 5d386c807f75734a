"""Sizes of caches, from how long a load takes by the size of what is loaded from. Pure.

    latency                       ______ memory
                     ____________/
       _____________/  level 2
        level 1
                     ^            ^ the last working set in the lower half of a step: the size of the cache

On a step, latency rises with the size; between two steps it hardly does. A load is never slower in less memory than in
more, so where it seems to be, something else ran meanwhile, and the lower figure counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Level", "levels"]

_STEP = 1.3  # latency over that of the level so far, from which on it is another level
_LEVELS_DIFFER = 1.45  # by this factor at least
_FLAT = 1.12  # growth of latency over a growth of the working set by the root of 2, up to which there is no step


@dataclass(frozen=True, slots=True)
class Level:
    """A cache of `size` bytes (None: the memory itself), from which a load takes `seconds`."""

    size: float | None
    seconds: float


def levels(sizes: Sequence[float], seconds: Sequence[float]) -> list[Level]:
    """The levels that a curve of latencies shows; `sizes` rise. The last one is memory, or what is largest here."""
    seconds = list(itertools.accumulate(reversed(seconds), min))[::-1]
    plateaus = _plateaus(sizes, seconds)
    found = []
    for level, following in itertools.pairwise(plateaus):
        half = math.sqrt(level * following)
        found.append(Level(max(size for size, each in zip(sizes, seconds, strict=True) if each <= half), level))
    return [*found, Level(None, plateaus[-1])]


def _plateaus(sizes: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """The latencies between the steps."""
    found: list[float] = []
    at = 0
    while at < len(sizes):
        while at + 1 < len(sizes) and not _is_flat(sizes, seconds, at):
            at += 1
        level = seconds[at]
        if found and level < _LEVELS_DIFFER * found[-1]:
            found[-1] = level  # what looked flat was the end of a step
        else:
            found.append(level)
        while at < len(sizes) and seconds[at] <= _STEP * level:
            at += 1
    if seconds[-1] > found[-1]:
        found[-1:] = [seconds[-1]] if seconds[-1] < _LEVELS_DIFFER * found[-1] else [found[-1], seconds[-1]]
    return found


def _is_flat(sizes: Sequence[float], seconds: Sequence[float], at: int) -> bool:
    """Whether latency hardly rises from the size number `at` to the next."""
    steps = 2 * math.log2(sizes[at + 1] / sizes[at])
    return seconds[at + 1] / seconds[at] <= math.pow(_FLAT, steps)
