"""Every rank sums one part of the buffer: all send this part to it, and get the sum of it back.

    round  rank 0      rank 1      rank 2      rank 3
    0      =c0@2 < r1  =c1@1 < r0  =c2@1 < r0  =c3@1 < r0
           =c0@3 < r2  =c1@3 < r2  =c2@2 < r1  =c3@2 < r1
           =c0@4 < r3  =c1@4 < r3  =c2@4 < r3  =c3@3 < r2
    1      +c0 < @2    +c1 < @1    +c2@1 < @2  +c3@1 < @2
           +c0@3 < @4  +c1@3 < @4  +c2 < @4    +c3 < @3
    2      +c0 < @3    +c1 < @3    +c2 < @1    +c3 < @1
    3      =c1 < r1    =c0 < r0    =c0 < r0    =c0 < r0
           =c2 < r2    =c2 < r2    =c1 < r1    =c1 < r1
           =c3 < r3    =c3 < r3    =c3 < r3    =c2 < r2

n ranks: 2 rounds over links; each rank sends and receives 2(n - 1)/n of the buffer, adds (n - 1)/n of it, and needs
room for (n - 1)/n more. Everybody talks to everybody. Follows the tree.
"""

from __future__ import annotations

import numpy as np

from samegrad.schedules.cut import Cut
from samegrad.schedules.options import Options
from samegrad.schedules.phases import Phases
from samegrad.schedules.spans import Spans
from samegrad.schedules.trees import Level, Placed, Task, gather

__all__ = ["SHARDED", "sharded"]


def sharded(cut: Cut, options: Options) -> Phases:
    """Chunk c belongs to the c-th rank that holds leaves."""
    return SHARDED.phases(cut)


def _by_owners(task: Task) -> tuple[list[Spans], list[Placed]]:
    return gather(task, np.repeat(task.ranks, task.chunks // len(task.ranks)))


SHARDED = Level(_by_owners, chunks=lambda members: members)
