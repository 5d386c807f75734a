"""What a picture of a schedule shows: frames, which say what every rank holds, and the steps between them.

Consecutive rounds in which nothing leaves its rank are one step, since people see one addition there. A cell is live
from when it is written until it is last read; the result stays live. Further slots are shown while they are live only.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

from samegrad.schedules.explain import held_by_round
from samegrad.schedules.ir import Cell, Op, Schedule, Transfer

__all__ = ["Frame", "Step", "frames_of"]


@dataclass(frozen=True, slots=True)
class Frame:
    """cells: the leaves that each shown cell counts. live: those of them that are still needed."""

    cells: dict[Cell, Counter[int]]
    live: set[Cell]


@dataclass(frozen=True, slots=True)
class Step:
    """Rounds `first` to `last`. sent: the transfers between ranks. kept: (cell before, cell after) within a rank, where
    the one goes into the other."""

    first: int
    last: int
    sent: list[Transfer]
    kept: list[tuple[Cell, Cell]]


def frames_of(schedule: Schedule) -> tuple[list[Frame], list[Step]]:
    """The frames, the first one at the start, and the steps, one fewer, of a schedule that is right."""
    held: list[dict[Cell, Counter[int]]] = [{} for _ in range(len(schedule.rounds) + 1)]
    for chunk in range(schedule.chunks):
        for state, cells in zip(held, held_by_round(schedule, chunk), strict=True):
            state |= {cell: each.counts for cell, each in cells.items()}
    rounds = [list(each) for each in schedule.rounds]
    live = _live(schedule, rounds)
    numbers = [
        list(group)
        for local, together in itertools.groupby(
            range(len(rounds)), lambda number: not any(map(_crosses, rounds[number]))
        )
        for group in ([list(together)] if local else [[number] for number in together])
    ]
    shown = [0, *(group[-1] + 1 for group in numbers)]
    frames = [
        Frame({cell: counts for cell, counts in held[at].items() if cell.slot == 0 or cell in live[at]}, live[at])
        for at in shown
    ]
    steps = [
        _step(group, [move for number in group for move in rounds[number]], before, after)
        for group, (before, after) in zip(numbers, itertools.pairwise(frames), strict=True)
    ]
    return frames, steps


def _crosses(move: Transfer) -> bool:
    return move.read.rank != move.written.rank


def _live(schedule: Schedule, rounds: list[list[Transfer]]) -> list[set[Cell]]:
    """The cells that are still needed: at the start, and after each round."""
    chunks = range(schedule.chunks)
    if schedule.collective.ends_everywhere:
        needed = {Cell(rank, 0, chunk) for rank in schedule.cut.holders for chunk in chunks}
    else:
        assert schedule.owners is not None
        needed = {Cell(schedule.owners[chunk], 0, chunk) for chunk in chunks}
    live = [needed]
    for moves in reversed(rounds):
        copied = {move.written for move in moves if move.op is Op.COPY}
        live.append((live[-1] - copied) | {move.read for move in moves} | {move.written for move in moves} - copied)
    return live[::-1]


def _step(numbers: list[int], moves: list[Transfer], before: Frame, after: Frame) -> Step:
    inside = [move for move in moves if not _crosses(move)]
    sources = {cell for move in inside for cell in (move.read, move.written)} & before.live
    targets = {move.written for move in inside} & after.live
    kept = [
        (source, target)
        for target in sorted(targets)
        for source in sorted(sources)
        if (source.rank, source.chunk) == (target.rank, target.chunk) and before.cells[source] <= after.cells[target]
    ]
    return Step(numbers[0], numbers[-1], [move for move in moves if _crosses(move)], kept)
