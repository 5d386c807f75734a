"""Sums along the tree: what all algorithms that follow it are made of.

A node's sum is spread over ranks: for each chunk, one cell has it (`Placed`). Merging two siblings adds each chunk of
the one into the cell that has this chunk of the other. Which of the two moves is free for every chunk, and so is
whether the contributions are first gathered somewhere: these two choices make the algorithms.

    always to the left one                              binomial tree
    half of the chunks to each                          halving-doubling
    gathered by the owner of each chunk, added there    one device, host, sharded, servers
    within hosts first, then between them               hierarchical

Any cut will do: a rank that holds several subtrees takes part in several sums, in several slots. The result goes back
the ways that the contributions came (`spread_back`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from samegrad.schedules.cut import Contribution, Cut
from samegrad.schedules.ir import IntArray, Op, Round
from samegrad.schedules.phases import Phases
from samegrad.schedules.spans import Pieces, SpannedRounds, Spans
from samegrad.shards import Node, height, leaves_of

__all__ = ["Level", "Placed", "Task", "ToRight", "Way", "gather", "merge_up", "phases_of", "spread_back"]


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """The sum of `node`, cut in chunks: chunk c is in slot `slot[c]` of rank `rank[c]`."""

    node: Node
    rank: IntArray
    slot: IntArray

    @classmethod
    def whole(cls, held: Contribution, chunks: int) -> Placed:
        """What a rank holds at the start."""
        return cls(held.node, np.full(chunks, held.rank, np.int32), np.full(chunks, held.slot, np.int32))


@dataclass(frozen=True, slots=True)
class Task:
    """Contributions to be added as far as they are whole subtrees.

    held: from left to right. leaves: of the whole tree. scratch: the first slot that is free on all ranks.
    """

    held: tuple[Contribution, ...]
    leaves: int
    chunks: int
    scratch: int

    @classmethod
    def of(cls, cut: Cut, chunks: int) -> Task:
        """All contributions of a cut."""
        return cls(tuple(cut.contributions()), cut.leaves, chunks, max(1, *(len(nodes) for nodes in cut.nodes)))

    @property
    def ranks(self) -> list[int]:
        """The ranks that hold something, in order."""
        return sorted({each.rank for each in self.held})

    def placed(self) -> list[Placed]:
        """Where the contributions are at the start."""
        return [Placed.whole(each, self.chunks) for each in self.held]


Way = Callable[[Task], tuple[list[Spans], list[Placed]]]
"""How a task is done: the rounds, and where the sums are then. If all leaves are in the task, it is one: the result."""


@dataclass(frozen=True, slots=True)
class Level:
    """A way, and into how many chunks it cuts the buffer for a number of members; a multiple of that will do, too."""

    way: Way
    chunks: Callable[[int], int]

    def phases(self, cut: Cut) -> Phases:
        """The halves of an all-reduce of all that `cut` holds."""
        return phases_of(self.way, cut, self.chunks(len(cut.holders)))


ToRight = Callable[[int], npt.NDArray[np.bool_]]
"""Given the level of two siblings: for each chunk, whether the left one moves to the right one, or else the reverse."""


def merge_up(placed: Sequence[Placed], leaves: int, to_right: ToRight | None) -> tuple[list[Spans], list[Placed]]:
    """Merges siblings level by level, as far up as all leaves of the parent are there; always to the left if None."""
    held = np.zeros(leaves + 1, dtype=np.int64)
    for each in placed:
        covered = leaves_of(each.node, leaves)
        held[covered.start + 1 : covered.stop + 1] = 1
    before = np.cumsum(held)  # how many of the leaves before this one are there
    rounds: list[Spans] = []
    done: list[Placed] = []
    alive: dict[int, Placed] = {}
    top = height(leaves)
    for level in range(top + 1):
        alive |= {each.node.number: each for each in placed if each.node.level == level}
        moves, above = [], dict[int, Placed]()
        for number in sorted(alive):
            each, parent = alive[number], Node(level + 1, number // 2)
            covered = leaves_of(parent, leaves)
            if level == top or before[covered.stop] - before[covered.start] < len(covered):
                done.append(each)
                continue
            left = above.get(parent.number)
            rank, slot = each.rank, each.slot
            if left is not None:
                move, rank, slot = _merged(left, each, None if to_right is None else to_right(level))
                moves.append(move)
            above[parent.number] = Placed(parent, rank, slot)
        alive = above
        if moves:
            rounds.append(Spans.of(Round.joined(moves)))
    return rounds, sorted(done, key=lambda each: each.node.number << each.node.level)


def _merged(left: Placed, right: Placed, to_right: npt.NDArray[np.bool_] | None) -> tuple[Round, IntArray, IntArray]:
    within = left.rank == right.rank  # then into slot 0, where the result shall be
    apart = np.zeros(len(within), dtype=bool) if to_right is None else to_right
    moves = np.where(within, right.slot == 0, apart)
    rank, slot = np.where(moves, right.rank, left.rank), np.where(moves, right.slot, left.slot)
    source, source_slot = np.where(moves, left.rank, right.rank), np.where(moves, left.slot, right.slot)
    return Round.of(source, source_slot, rank, slot, np.arange(len(rank)), Op.ADD), rank, slot


def gather(task: Task, owners: npt.ArrayLike) -> tuple[list[Spans], list[Placed]]:
    """Every contribution is copied to the owner of its chunk, all at the same time, and added there along the tree."""
    owner = np.broadcast_to(np.asarray(owners, dtype=np.int32), task.chunks)
    free = np.where(np.isin(owner, task.ranks), task.scratch, 0)  # who holds nothing has slot 0 free, too
    copies, placed = [], []
    for position, each in enumerate(task.held):
        remote = np.flatnonzero(owner != each.rank)
        slot = np.full(task.chunks, each.slot, dtype=np.int32)
        slot[remote] = free[remote] + position
        copies.append(Round.of(each.rank, each.slot, owner[remote], slot[remote], remote, Op.COPY))
        placed.append(Placed(each.node, owner, slot))
    copied = Spans.of(Round.joined(copies))
    added, sums = merge_up(placed, task.leaves, None)
    return [*([copied] if len(copied) else []), *added], sums


def phases_of(way: Way, cut: Cut, chunks: int, weights: tuple[int, ...] | None = None) -> Phases:
    """The two halves of an all-reduce by `way`: the sum of each chunk at its owner, and from there to all."""
    rounds, sums = way(Task.of(cut, chunks))
    (root,) = sums
    elsewhere = np.flatnonzero(root.slot)
    ranks = root.rank[elsewhere]
    last = Spans.of(Round.of(ranks, root.slot[elsewhere], ranks, 0, elsewhere, Op.COPY))
    reduce = SpannedRounds([*rounds, *([last] if len(last) else [])])
    spread = SpannedRounds(spread_back(rounds, root.rank))
    return Phases(chunks, tuple(root.rank.tolist()), reduce, spread, weights=weights)


def spread_back(rounds: Sequence[Spans], owners: IntArray) -> list[Spans]:
    """Copies each chunk from its owner to every rank that holds leaves, on the ways of `rounds` back; all in slot 0."""
    edge = len(owners) + 1
    starts = np.flatnonzero(np.append(True, np.diff(owners) != 0))
    stops = np.append(starts[1:], len(owners))
    own = owners[starts].astype(np.int64) * edge
    bases = [each.source.astype(np.int64) * edge for each in rounds]
    ends = [base + bound for base, each in zip(bases, rounds, strict=True) for bound in (each.first, each.stop)]
    pieces = Pieces(np.concatenate([own + starts, own + stops, *ends]))
    has = np.zeros(len(pieces.bounds), dtype=bool)
    has[pieces.between(own + starts, own + stops)[0]] = True
    spread = []
    for base, each in reversed(list(zip(bases, rounds, strict=True))):
        piece, row = pieces.between(base + each.first, base + each.stop)
        fresh = np.flatnonzero(~has[piece])
        piece, first = np.unique(piece[fresh], return_index=True)
        if len(piece):
            rows = each.rows[row[fresh[first]]]
            rows = rows[:, [2, 3, 0, 1, 4, 5, 6]]
            rows[:, [1, 3]], rows[:, 6] = 0, Op.COPY
            rows[:, 4], rows[:, 5] = pieces.bounds[piece] % edge, pieces.bounds[piece + 1] % edge
            spread.append(Spans(rows).merged())
            has[piece] = True
    return spread
