"""A ring used in both directions: half of the buffer goes one way, half the other.

    round  rank 0    rank 1    rank 2    rank 3
    0      +c2 < r3  +c3 < r0  +c0 < r1  +c1 < r2
           +c5 < r1  +c4 < r2  +c7 < r3  +c6 < r0
    1      +c1 < r3  +c2 < r0  +c3 < r1  +c0 < r2
           +c4 < r1  +c7 < r2  +c6 < r3  +c5 < r0
    2      +c0 < r3  +c1 < r0  +c2 < r1  +c3 < r2
           +c7 < r1  +c6 < r2  +c5 < r3  +c4 < r0
    3      =c3 < r3  =c0 < r0  =c1 < r1  =c2 < r2
           =c6 < r1  =c5 < r2  =c4 < r3  =c7 < r0
    4      =c2 < r3  =c3 < r0  =c0 < r1  =c1 < r2
           =c5 < r1  =c4 < r2  =c7 < r3  =c6 < r0
    5      =c1 < r3  =c2 < r0  =c3 < r1  =c0 < r2
           =c4 < r1  =c7 < r2  =c6 < r3  =c5 < r0

n ranks: 2(n - 1) rounds; each rank sends and receives 2(n - 1)/n of the buffer, half of it over each of its two links,
and adds (n - 1)/n of it: where links carry as much in both directions, half the time of a ring. The bits depend on n.
"""

from __future__ import annotations

from samegrad.schedules.circles import circling
from samegrad.schedules.cut import Cut
from samegrad.schedules.options import Options
from samegrad.schedules.phases import Phases

__all__ = ["two_way_ring"]


def two_way_ring(cut: Cut, options: Options) -> Phases:
    """Two rings: in the order of the ranks, and the reverse."""
    ranks = range(cut.ranks)
    return circling("two-way-ring", cut, [ranks, ranks[::-1]])
