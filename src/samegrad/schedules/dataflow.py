"""What a schedule computes, without the way of the data: which rank adds what to what, and after what.

Ranks that can read each other's memory need no copies: a value is read where it is. Then a schedule is its additions.
Each is a `Sum` that one rank computes of two values; a value is a contribution, which is there at the start, or a sum.

Sums have levels. A sum that needs a sum of another rank has a higher level than that, so that everything on one level
can be computed at the same time, once the levels below are done. A rank computes its sums of one level in order.

(Values that copies only rename are what compilers know as value numbering.)
"""

from __future__ import annotations

from dataclasses import dataclass

from samegrad.schedules.ir import Cell, Op, Schedule

__all__ = ["ChunkFlow", "Held", "Sum", "Value", "dataflow_of"]


@dataclass(frozen=True, slots=True)
class Held:
    """A contribution: what `slot` of `rank` held at the start."""

    rank: int
    slot: int


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """left + right, added by `rank` on `level`."""

    rank: int
    left: Value
    right: Value
    level: int


Value = Held | Sum


@dataclass(frozen=True, slots=True)
class ChunkFlow:
    """One chunk. sums: those that a result needs, by level, on each in an order in which they can be computed.
    results: the value of each rank that gets one."""

    sums: list[Sum]
    results: dict[int, Value]


def dataflow_of(schedule: Schedule) -> list[ChunkFlow]:
    """The additions of a schedule that `verify` accepts and that starts with leaves, for each chunk."""
    held = {
        Cell(rank, slot, chunk): Held(rank, slot)
        for rank, nodes in enumerate(schedule.cut.nodes)
        for slot in range(len(nodes))
        for chunk in range(schedule.chunks)
    }
    cells: dict[Cell, Value] = dict(held)
    added: list[list[Sum]] = [[] for _ in range(schedule.chunks)]
    for each in schedule.rounds:
        moves = list(each)
        read = [cells[move.read] for move in moves]  # everything as it was before the round
        for move, value in zip(moves, read, strict=True):
            if move.op is Op.ADD:
                value = _sum(move.target, cells[move.written], value)
                added[move.chunk].append(value)
            cells[move.written] = value
    flows = []
    for chunk, sums in enumerate(added):
        ends = schedule.cut.holders if schedule.owners is None else [schedule.owners[chunk]]
        results = {rank: cells[Cell(rank, 0, chunk)] for rank in ends}
        flows.append(ChunkFlow(_needed(sums, results), results))
    return flows


def _sum(rank: int, left: Value, right: Value) -> Sum:
    levels = [value.level + (value.rank != rank) for value in (left, right) if isinstance(value, Sum)]
    return Sum(rank, left, right, max(levels, default=0))


def _needed(sums: list[Sum], results: dict[int, Value]) -> list[Sum]:
    wanted = {id(value) for value in results.values()}
    needed = []
    for total in reversed(sums):
        if id(total) in wanted:
            needed.append(total)
            wanted |= {id(total.left), id(total.right)}
    needed.reverse()
    return sorted(needed, key=lambda total: total.level)
