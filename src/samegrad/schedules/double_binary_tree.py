"""Two binary trees over the ranks, half of the buffer in each; a rank that is a leaf of one is inside the other.

    round  rank 0    rank 1    rank 2    rank 3
    0                +c1 < r0  +c0 < r1
    1                +c1 < r2  +c0 < r3
    2      +c0 < r2                      +c1 < r1
    3                =c1 < r3  =c0 < r0
    4                          =c1 < r1  =c0 < r2
    5      =c1 < r1  =c0 < r2

n ranks: about 4 log2(n) rounds; each rank receives and sends the buffer about twice in all, over at most two neighbours
at a time; for large buffers it is cut finer, so that pieces follow each other (`pipelined`). The order of additions is
that of these trees, not that of the tree over the shards, so the bits depend on n.

Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; used by
NCCL since 2.4.
"""

from __future__ import annotations

from samegrad.schedules.cut import Cut
from samegrad.schedules.ir import Op, Round, Transfer
from samegrad.schedules.options import Options
from samegrad.schedules.phases import Phases, add_own_slots

__all__ = ["double_binary_tree"]


def double_binary_tree(cut: Cut, options: Options) -> Phases:
    """The second tree is the first one moved by one rank (odd n) or mirrored (even n)."""
    n = cut.ranks
    first = _parents(n)
    if n % 2:
        second: list[int | None] = [None] * n
        for rank, parent in enumerate(first):
            second[(rank + 1) % n] = None if parent is None else (parent + 1) % n
    else:
        second = [None if parent is None else n - 1 - parent for parent in reversed(first)]
    trees = (first, second)
    depths = [[_depth(tree, rank) for rank in range(n)] for tree in trees]
    deepest = max(max(each) for each in depths)
    up: list[list[Transfer]] = [[] for _ in range(2 * deepest)]
    for chunk, tree in enumerate(trees):
        taken: dict[int, int] = {}  # children that a parent has heard so far
        for rank in sorted(range(n), key=lambda rank: (-depths[chunk][rank], rank)):
            parent = tree[rank]
            if parent is not None:
                turn = taken.get(parent, 0)
                taken[parent] = turn + 1
                number = 2 * (deepest - depths[chunk][rank]) + turn
                up[number].append(Transfer(rank, 0, parent, 0, chunk, Op.ADD))
    reduce = [_round(moves) for moves in up if moves]
    spread = [Round.of(each.target, 0, each.source, 0, each.chunk, Op.COPY) for each in reversed(reduce)]
    owners = tuple(tree.index(None) for tree in trees)
    return Phases(2, owners, [*add_own_slots("double-binary-tree", cut, 2), *reduce], spread)


def _parents(n: int) -> list[int | None]:
    """The parent of each rank in a binary tree in which the odd ranks are leaves, and rank 0 is the root.

    With b the lowest bit that is set in a rank, its parent is the rank without b and with 2b, or, if there is no such
    rank, just without b.
    """
    parents: list[int | None] = [None]
    for rank in range(1, n):
        lowest = rank & -rank
        parent = (rank ^ lowest) | (lowest << 1)
        parents.append(parent if parent < n else rank ^ lowest)
    return parents


def _depth(tree: list[int | None], rank: int) -> int:
    depth, parent = 0, tree[rank]
    while parent is not None:
        depth, parent = depth + 1, tree[parent]
    return depth


def _round(moves: list[Transfer]) -> Round:
    source, source_slot, target, target_slot, chunk, _ = zip(*moves, strict=True)
    return Round.of(source, source_slot, target, target_slot, chunk, Op.ADD)
