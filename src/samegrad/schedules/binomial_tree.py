"""A binomial tree: neighbours in pairs, then pairs of pairs; the sum goes back the same ways.

    round  rank 0    rank 1    rank 2    rank 3
    0      +c0 < r1            +c0 < r3
    1      +c0 < r2
    2                          =c0 < r0
    3                =c0 < r0            =c0 < r2

n ranks: 2 log2(n) rounds, rounded up; in each, a rank sends or receives the whole buffer. Rank 0 receives and adds it
log2(n) times. Few messages: for small buffers. Follows the tree.
"""

from __future__ import annotations

from samegrad.schedules.cut import Cut
from samegrad.schedules.options import Options
from samegrad.schedules.phases import Phases
from samegrad.schedules.spans import Spans
from samegrad.schedules.trees import Level, Placed, Task, merge_up

__all__ = ["BINOMIAL_TREE", "binomial_tree"]


def binomial_tree(cut: Cut, options: Options) -> Phases:
    """Of two siblings, the right one sends to the left one."""
    return BINOMIAL_TREE.phases(cut)


def _to_the_left(task: Task) -> tuple[list[Spans], list[Placed]]:
    return merge_up(task.placed(), task.leaves, None)


BINOMIAL_TREE = Level(_to_the_left, chunks=lambda members: 1)
