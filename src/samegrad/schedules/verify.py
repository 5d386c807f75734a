"""Proves what a schedule computes: which contributions each cell counts, and in which order they were added.

The schedule is run on numbers that stand for what a cell holds, all chunks at once:

- its contributions, as a multiset: every leaf has a random 64-bit number, a cell has the sum of those that it counts.
- its expression: leaf numbers are mixed along the additions, such that a + b and b + a are the same, and no others.

Two different multisets, or expressions, have the same number with a probability of 2^-64. When a number is wrong, its
chunk is run again with real multisets and expressions (`explain`), to say what went wrong, and in which round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from samegrad.errors import ScheduleError
from samegrad.schedules.bounds import check_bounds
from samegrad.schedules.explain import explain
from samegrad.schedules.ir import Op, Round, Schedule
from samegrad.schedules.spans import chosen_of
from samegrad.shards import Node, additions, leaves_of

__all__ = ["ALL_CHUNKS_UP_TO", "Proof", "verify"]

ALL_CHUNKS_UP_TO = 1024
"""Ranks up to which every chunk is verified; of more ranks, some chunks are."""
_SAMPLED_CHUNKS = 64
_DENSE_CELLS = 1 << 25

_Numbers = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.int64]
_Index = int | npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found about a schedule that is right.

    follows_tree: whether every result was added along the tree over the leaves: the same bits for every cut.
    staged: by round, whether what is read must be copied first, since transfers overwrite what others read.
    chunks: how many chunks were verified; all, up to 1,024 ranks.
    """

    follows_tree: bool
    staged: tuple[bool, ...]
    chunks: int


def verify(schedule: Schedule, must_follow_tree: bool = False) -> Proof:
    """Proves that `schedule` computes its collective; raises ScheduleError, naming round and cell, if it does not.

    must_follow_tree: that another order of additions than that of the tree is an error, too.
    """
    if schedule.ranks <= ALL_CHUNKS_UP_TO or isinstance(schedule.rounds, list | tuple):
        check_bounds(schedule)  # the rounds of algorithms for more ranks are too many to be looked at whole
    chosen = _chunks_to_verify(schedule)
    try:
        return _Verification(schedule, chosen, must_follow_tree).run()
    except _Wrong as wrong:
        raise ScheduleError(explain(schedule, wrong.chunk, must_follow_tree)) from None


class _Wrong(Exception):
    """Something about a chunk is wrong; `explain` finds out what."""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk


def _chunks_to_verify(schedule: Schedule) -> npt.NDArray[np.int64]:
    count = schedule.chunks
    if schedule.ranks <= ALL_CHUNKS_UP_TO or count <= _SAMPLED_CHUNKS:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, _SAMPLED_CHUNKS).astype(np.int64))


class _Verification:
    """The state of all cells of the chosen chunks, while the rounds go by."""

    def __init__(self, schedule: Schedule, chosen: npt.NDArray[np.int64], must_follow_tree: bool) -> None:
        self._schedule, self._chosen, self._must_follow_tree = schedule, chosen, must_follow_tree
        self._column = np.full(schedule.chunks, -1, dtype=np.int64)
        self._column[chosen] = np.arange(len(chosen))
        self._slots = schedule.slots()
        self._first = np.cumsum([0, *self._slots])[:-1]  # of each rank, among all slots of all ranks
        cells = sum(self._slots) * len(chosen)
        self._known: _Places | None = None  # the cells that occur, when not all that might exist are kept
        if cells > _DENSE_CELLS:
            places = np.sort(np.concatenate(self._occurring()))  # np.unique is many times slower here
            self._known = places[np.concatenate([[True], places[1:] != places[:-1]])]
            cells = len(self._known)
        self._counts = np.zeros(cells, dtype=np.uint64)
        self._expressions = np.zeros(cells, dtype=np.uint64)
        self._filled = np.zeros(cells, dtype=bool)
        self._read = np.zeros(cells, dtype=bool)
        self._last = np.zeros(cells, dtype=np.int64)

    def run(self) -> Proof:
        root = self._fill()
        staged = [self._pass(each) for each in self._rounds()]
        follows_tree = self._check_result(*root)
        return Proof(follows_tree, tuple(staged), len(self._chosen))

    def _occurring(self) -> Sequence[_Places]:
        schedule = self._schedule
        ranks = np.repeat(np.arange(schedule.ranks), [max(len(nodes), 1) for nodes in schedule.cut.nodes])
        slots = np.concatenate([np.arange(max(len(nodes), 1)) for nodes in schedule.cut.nodes])
        found = [((self._first[ranks] + slots)[:, None] * len(self._chosen) + np.arange(len(self._chosen))).ravel()]
        for rows in self._rounds():
            found.append(self._key(rows.source, rows.source_slot, rows.chunk))
            found.append(self._key(rows.target, rows.target_slot, rows.chunk))
        return found

    def _rounds(self) -> Iterator[Round]:
        return chosen_of(self._schedule.rounds, self._chosen, self._schedule.chunks)

    def _key(self, rank: _Index, slot: _Index, chunk: npt.NDArray[np.integer]) -> _Places:
        return np.asarray((self._first[rank] + slot) * len(self._chosen) + self._column[chunk], dtype=np.int64)

    def _place(self, rank: _Index, slot: _Index, chunk: npt.NDArray[np.integer]) -> _Places:
        keys = self._key(rank, slot, chunk)
        return keys if self._known is None else np.searchsorted(self._known, keys)

    def _fill(self) -> tuple[np.uint64, np.uint64]:
        """Puts into the cells what the ranks hold at the start; returns the numbers of the right result."""
        schedule, chosen = self._schedule, self._chosen
        if not schedule.collective.starts_with_leaves:
            assert schedule.owners is not None
            count, expression = _numbers_of_leaf(0)
            places = self._place(np.array(schedule.owners)[chosen], 0, chosen)
            self._counts[places], self._expressions[places], self._filled[places] = count, expression, True
            return count, expression
        held = schedule.cut.contributions()
        numbers = [_numbers_of_node(each.node, schedule.cut.leaves) for each in held]
        for each, (count, expression) in zip(held, numbers, strict=True):
            places = self._place(each.rank, each.slot, chosen)
            self._counts[places], self._expressions[places], self._filled[places] = count, expression, True
        return _combine(numbers, additions([each.node for each in held], schedule.cut.leaves))

    def _pass(self, rows: Round) -> bool:
        """Applies one round; returns whether it needs staging."""
        if not len(rows):
            return False
        sources = self._place(rows.source, rows.source_slot, rows.chunk)
        targets = self._place(rows.target, rows.target_slot, rows.chunk)
        adds = rows.op == Op.ADD
        wrong = ~self._filled[sources] | (adds & ~self._filled[targets]) | (sources == targets)
        self._raise_for(wrong, rows)
        counts, expressions = self._counts[sources], self._expressions[sources]
        self._read[sources] = True
        staged = bool(self._read[targets].any())
        self._read[sources] = False
        for chosen in self._passes(targets, adds, rows):
            places, added = targets[chosen], adds[chosen]
            self._counts[places] = np.where(added, self._counts[places] + counts[chosen], counts[chosen])
            self._expressions[places] = np.where(
                added, _added(self._expressions[places], expressions[chosen]), expressions[chosen]
            )
            self._filled[places] = True
        if staged and self._schedule.in_place:
            staged = _waits_in_a_cycle(sources, targets)
            if staged:
                cells = np.isin(targets, sources)
                self._raise_for(cells, rows)
        return staged

    def _passes(
        self, targets: _Places, adds: npt.NDArray[np.bool_], rows: Round
    ) -> list[npt.NDArray[np.int64] | slice]:
        """The transfers in turns, such that each cell is written once in a turn, in listed order."""
        numbers = np.arange(len(targets))
        self._last[targets] = numbers
        if (self._last[targets] == numbers).all():
            return [slice(None)]
        order = np.argsort(targets, kind="stable")
        again = np.concatenate([[False], targets[order][1:] == targets[order][:-1]])
        copied = np.unique(targets[~adds])
        self._raise_for(np.isin(targets, copied) & np.isin(targets, targets[order][again]), rows)
        starts = np.flatnonzero(~again)
        turn = np.empty(len(order), dtype=np.int64)
        turn[order] = numbers - np.repeat(starts, np.diff([*starts, len(order)]))
        return [np.flatnonzero(turn == number) for number in range(int(turn.max()) + 1)]

    def _check_result(self, count: np.uint64, expression: np.uint64) -> bool:
        schedule, chosen = self._schedule, self._chosen
        follows = True
        if schedule.collective.ends_everywhere:
            wanted = [(rank, chosen) for rank in schedule.cut.holders]
        else:
            assert schedule.owners is not None
            owners = np.array(schedule.owners)[chosen]
            wanted = [(int(rank), chosen[owners == rank]) for rank in np.unique(owners)]
        for rank, chunks in wanted:
            places = self._place(rank, 0, chunks)
            right = self._filled[places] & (self._counts[places] == count)
            ordered = self._expressions[places] == expression
            if not right.all():
                raise _Wrong(int(chunks[~right][0]))
            if self._must_follow_tree and not ordered.all():
                raise _Wrong(int(chunks[~ordered][0]))
            follows = follows and bool(ordered.all())
        return follows

    def _raise_for(self, wrong: npt.NDArray[np.bool_], rows: Round) -> None:
        if wrong.any():
            raise _Wrong(int(rows.chunk[wrong][0]))


def _waits_in_a_cycle(sources: _Places, targets: _Places) -> bool:
    """Whether no order of the transfers has each cell read before it is overwritten, and added to in listed order."""
    while len(sources):
        earlier = np.ones(len(targets), dtype=bool)
        earlier[np.unique(targets, return_index=True)[1]] = False
        blocked = np.isin(targets, sources) | earlier
        if blocked.all():
            return True
        sources, targets = sources[blocked], targets[blocked]
    return False


def _mix(numbers: _Numbers) -> _Numbers:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014): a permutation of 64-bit numbers without any pattern."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


def _added(a: _Numbers, b: _Numbers) -> _Numbers:
    """The number of the expression a + b, which is that of b + a."""
    return _mix((a ^ b) * np.uint64(0x9E3779B97F4A7C15) + _mix(a + b))


def _numbers_of_leaf(leaf: int) -> tuple[np.uint64, np.uint64]:
    counted, expression = _mix(np.array([2 * leaf + 1, 2 * leaf + 2], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return counted, expression


def _numbers_of_node(node: Node, leaves: int) -> tuple[np.uint64, np.uint64]:
    covered = [Node(0, leaf) for leaf in leaves_of(node, leaves)]
    return _combine([_numbers_of_leaf(leaf.number) for leaf in covered], additions(covered, leaves))


def _combine(
    numbers: Sequence[tuple[np.uint64, np.uint64]], steps: Sequence[tuple[int, int]]
) -> tuple[np.uint64, np.uint64]:
    """The numbers of the sum of all of them, added as `steps` say."""
    counts = np.array([count for count, _ in numbers], dtype=np.uint64)
    expressions = np.array([expression for _, expression in numbers], dtype=np.uint64)
    for left, right in steps:
        expressions[left : left + 1] = _added(expressions[left : left + 1], expressions[right : right + 1])
    return counts.sum(dtype=np.uint64), expressions[0]
