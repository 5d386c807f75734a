"""Recursive doubling: in each round, pairs exchange all they have, and both add; distances 1, 2, 4, and so on.

    round  rank 0    rank 1    rank 2    rank 3
    0      +c0 < r1  +c0 < r0  +c0 < r3  +c0 < r2
    1      +c0 < r2  +c0 < r3  +c0 < r0  +c0 < r1

n ranks, a power of two: log2(n) rounds; each rank sends, receives and adds the buffer log2(n) times. Half the rounds of
a tree: for small buffers. With r ranks more than a power of two, the first 2r ranks make pairs, of which one adds for
both, in one round before and one after. What is read is overwritten in the same round, so it must be copied first.

The order of additions is that of the tree where n is a power of two and every rank holds one leaf, and for few other
cuts; so the bits depend on n.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

from __future__ import annotations

import numpy as np

from samegrad.schedules.cut import Cut
from samegrad.schedules.ir import Op, Round
from samegrad.schedules.options import Options
from samegrad.schedules.phases import Phases, add_own_slots

__all__ = ["recursive_doubling"]


def recursive_doubling(cut: Cut, options: Options) -> Phases:
    """Every rank has the whole result after the last round, so this is an all-reduce only."""
    n = cut.ranks
    core = 1 << (n.bit_length() - 1)
    spare = n - core
    givers = np.arange(1, 2 * spare, 2)
    members = np.concatenate([np.arange(0, 2 * spare, 2), np.arange(2 * spare, n)])
    rounds = add_own_slots("recursive-doubling", cut, 1)
    if spare:
        rounds.append(Round.of(givers, 0, givers - 1, 0, 0, Op.ADD))
    for level in range(core.bit_length() - 1):
        partners = members[np.arange(core) ^ (1 << level)]
        rounds.append(Round.of(members, 0, partners, 0, 0, Op.ADD))
    if spare:
        rounds.append(Round.of(givers - 1, 0, givers, 0, 0, Op.COPY))
    return Phases(1, (0,), rounds, [], in_place=False, is_whole=True)
