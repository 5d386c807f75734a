"""A ring: every rank sends to the next one only.

    round  rank 0    rank 1    rank 2    rank 3
    0      +c2 < r3  +c3 < r0  +c0 < r1  +c1 < r2
    1      +c1 < r3  +c2 < r0  +c3 < r1  +c0 < r2
    2      +c0 < r3  +c1 < r0  +c2 < r1  +c3 < r2
    3      =c3 < r3  =c0 < r0  =c1 < r1  =c2 < r2
    4      =c2 < r3  =c3 < r0  =c0 < r1  =c1 < r2
    5      =c1 < r3  =c2 < r0  =c3 < r1  =c0 < r2

n ranks: 2(n - 1) rounds; each rank sends and receives 2(n - 1)/n of the buffer and adds (n - 1)/n of it. The time
hardly depends on n while latency does not count. The order of additions differs by chunk, so the bits depend on n.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
"""

from __future__ import annotations

from samegrad.schedules.circles import circling
from samegrad.schedules.cut import Cut
from samegrad.schedules.options import Options
from samegrad.schedules.phases import Phases

__all__ = ["ring"]


def ring(cut: Cut, options: Options) -> Phases:
    """One ring, in the order of the ranks."""
    return circling("ring", cut, [range(cut.ranks)])
