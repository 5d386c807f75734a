"""Everyone gets everything and sums it: one exchange, and no way back.

    round  rank 0      rank 1      rank 2      rank 3
    0      =c0@2 < r1  =c0@1 < r0  =c0@1 < r0  =c0@1 < r0
           =c0@3 < r2  =c0@3 < r2  =c0@2 < r1  =c0@2 < r1
           =c0@4 < r3  =c0@4 < r3  =c0@4 < r3  =c0@3 < r2
    1      +c0 < @2    +c0 < @1    +c0@1 < @2  +c0@1 < @2
           +c0@3 < @4  +c0@3 < @4  +c0 < @4    +c0 < @3
    2      +c0 < @3    +c0 < @3    +c0 < @1    +c0 < @1

n ranks: 1 round over links; each rank sends and receives n - 1 times the buffer, adds it n - 1 times, and needs room
for n - 1 more. For small buffers, two ranks, and ranks that can read each other's memory. Follows the tree.
"""

from __future__ import annotations

import numpy as np

from samegrad.schedules.cut import Cut
from samegrad.schedules.ir import Op, Round
from samegrad.schedules.options import Options
from samegrad.schedules.phases import Phases
from samegrad.schedules.trees import Task, gather

__all__ = ["one_shot"]


def one_shot(cut: Cut, options: Options) -> Phases:
    """Every rank that holds leaves sums all; as `gather` to the owners of as many chunks, which are one chunk here."""
    ranks = np.asarray(cut.holders, dtype=np.int32)
    spans, (root,) = gather(Task.of(cut, len(ranks)), ranks)
    rounds = [each.round() for each in spans]
    elsewhere = np.flatnonzero(root.slot)
    if len(elsewhere):
        owners = root.rank[elsewhere]
        rounds = [*rounds, Round.of(owners, root.slot[elsewhere], owners, 0, elsewhere, Op.COPY)]
    return Phases(1, (0,), [_in_one_chunk(each) for each in rounds], [], is_whole=True)


def _in_one_chunk(each: Round) -> Round:
    rows = each.rows.copy()
    rows[:, 4] = 0
    return Round(rows)
