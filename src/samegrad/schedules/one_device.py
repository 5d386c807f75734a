"""One device gathers, sums and sends back.

    round  rank 0      rank 1    rank 2    rank 3
    0      =c0@2 < r1
           =c0@3 < r2
           =c0@4 < r3
    1      +c0 < @2
           +c0@3 < @4
    2      +c0 < @3
    3                  =c0 < r0  =c0 < r0  =c0 < r0

n ranks: 2 rounds over links; the device receives and sends n - 1 times the buffer, adds it n - 1 times, and needs room
for n - 1 more; the others send and receive it once. Follows the tree.
"""

from __future__ import annotations

from samegrad.schedules.cut import Cut
from samegrad.schedules.options import Options
from samegrad.schedules.phases import Phases
from samegrad.schedules.spans import Spans
from samegrad.schedules.trees import Level, Placed, Task, gather

__all__ = ["ONE_DEVICE", "one_device"]


def one_device(cut: Cut, options: Options) -> Phases:
    """The first rank that holds leaves does it."""
    return ONE_DEVICE.phases(cut)


def _at_the_first(task: Task) -> tuple[list[Spans], list[Placed]]:
    return gather(task, task.ranks[0])


ONE_DEVICE = Level(_at_the_first, chunks=lambda members: 1)
