"""Halving and doubling, nearest neighbour first: pairs exchange halves and add, pairs of pairs quarters, and so on.

    round  rank 0      rank 1      rank 2      rank 3
    0      +c0-1 < r1  +c2-3 < r0  +c0-1 < r3  +c2-3 < r2
    1      +c0 < r2    +c2 < r3    +c1 < r0    +c3 < r1
    2      =c1 < r2    =c3 < r3    =c0 < r0    =c2 < r1
    3      =c2-3 < r1  =c0-1 < r0  =c2-3 < r3  =c0-1 < r2

n ranks: 2 log2(n) rounds, rounded up; each rank sends and receives 2(n - 1)/n of the buffer and adds (n - 1)/n of it,
where n is a power of two and every rank holds one leaf; near that otherwise. Large parts go to the nearest. Follows the
tree, since what is added first are neighbours.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005; there the
farthest come first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from samegrad.schedules.cut import Cut
from samegrad.schedules.options import Options
from samegrad.schedules.phases import Phases
from samegrad.schedules.spans import Spans
from samegrad.schedules.trees import Level, Placed, Task, merge_up

__all__ = ["HALVING_DOUBLING", "halving_doubling"]


def halving_doubling(cut: Cut, options: Options) -> Phases:
    """Cut into as many chunks as there are ranks, rounded up to a power of two."""
    return HALVING_DOUBLING.phases(cut)


def _halves(members: int) -> int:
    return 1 << (members - 1).bit_length()


def _half_each(task: Task) -> tuple[list[Spans], list[Placed]]:
    """Of two siblings, each gets one half of what both have: by another bit of the chunk's number on every level."""
    parts = _halves(len(task.ranks))
    part = np.arange(task.chunks) * parts // task.chunks
    bits = max((parts - 1).bit_length(), 1)
    lowest = min(each.node.level for each in task.held)

    def to_right(level: int) -> npt.NDArray[np.bool_]:
        return np.asarray((part >> (bits - 1 - (level - lowest) % bits)) & 1 == 1)

    return merge_up(task.placed(), task.leaves, to_right)


HALVING_DOUBLING = Level(_half_each, chunks=_halves)
