"""Rounds: transfers between cells that happen at the same time.

A cell is one chunk of one slot of one rank. Slot 0 is the buffer of the rank, further slots hold its other subtrees, or
are scratch. A transfer copies or adds the chunk of one cell to the same chunk of another cell, of another rank or the
same. Every transfer of a round reads what was there before the round; transfers into one cell act in listed order.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

__all__ = ["Cell", "ChainedRounds", "GeneratedRounds", "IntArray", "Op", "Round", "Rows", "Transfer"]

IntArray = npt.NDArray[np.int32]
Column = int | Sequence[int] | npt.NDArray[Any]


class Op(IntEnum):
    """What a transfer does to its target."""

    COPY = 0
    ADD = 1


class Cell(NamedTuple):
    """One chunk of one slot of one rank."""

    rank: int
    slot: int
    chunk: int


class Transfer(NamedTuple):
    """Chunk `chunk` of (source, source_slot), as before the round, is copied or added into (target, target_slot)."""

    source: int
    source_slot: int
    target: int
    target_slot: int
    chunk: int
    op: Op

    @property
    def read(self) -> Cell:
        """The cell that it reads."""
        return Cell(self.source, self.source_slot, self.chunk)

    @property
    def written(self) -> Cell:
        """The cell that it writes."""
        return Cell(self.target, self.target_slot, self.chunk)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """An array whose first columns are source, source slot, target and target slot."""

    rows: IntArray

    @property
    def source(self) -> IntArray:
        """The ranks that are read."""
        return self.rows[:, 0]

    @property
    def source_slot(self) -> IntArray:
        """The slots that are read."""
        return self.rows[:, 1]

    @property
    def target(self) -> IntArray:
        """The ranks that are written."""
        return self.rows[:, 2]

    @property
    def target_slot(self) -> IntArray:
        """The slots that are written."""
        return self.rows[:, 3]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class Round(Rows):
    """Transfers that happen at the same time: an array of one row for each, with the fields of `Transfer`."""

    @classmethod
    def of(
        cls,
        source: Column,
        source_slot: Column,
        target: Column,
        target_slot: Column,
        chunk: Column,
        op: Op,
    ) -> Round:
        """A round from columns; a single number counts for all rows."""
        columns = (source, source_slot, target, target_slot, chunk, int(op))
        lengths = [len(column) for column in columns if not isinstance(column, int)]
        rows = np.empty((lengths[0] if lengths else 1, len(columns)), np.int32)
        for place, column in enumerate(columns):
            rows[:, place] = column
        return cls(rows)

    @classmethod
    def joined(cls, rounds: Sequence[Round]) -> Round:
        """All transfers of `rounds`, in one round."""
        return cls(np.concatenate([each.rows for each in rounds]) if rounds else np.empty((0, 6), np.int32))

    @property
    def chunk(self) -> IntArray:
        """The chunks that are moved."""
        return self.rows[:, 4]

    @property
    def op(self) -> IntArray:
        """The operations, values of `Op`."""
        return self.rows[:, 5]

    def __iter__(self) -> Iterator[Transfer]:
        for row in self.rows.tolist():
            source, source_slot, target, target_slot, chunk, op = row
            yield Transfer(source, source_slot, target, target_slot, chunk, Op(op))

    def where(self, mask: npt.NDArray[np.bool_]) -> Round:
        """The transfers for which `mask` is true."""
        return Round(self.rows[mask])


class GeneratedRounds(Sequence[Round]):
    """`count` rounds, each made when it is looked at: for many ranks, all of them would fill the memory."""

    def __init__(self, count: int, make: Callable[[int], Round]) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Round: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Round]: ...
    def __getitem__(self, place: int | slice) -> Round | Sequence[Round]:
        chosen = range(self._count)[place]
        if isinstance(chosen, range):
            return GeneratedRounds(len(chosen), lambda index: self._make(chosen[index]))
        return self._make(chosen)


class ChainedRounds(GeneratedRounds):
    """The rounds of several sequences, one after the other; nothing is copied."""

    def __init__(self, parts: Sequence[Sequence[Round]]) -> None:
        self.parts = parts
        stops = list(itertools.accumulate(len(part) for part in parts))

        def make(number: int) -> Round:
            part = bisect.bisect_right(stops, number)
            return parts[part][number - (stops[part - 1] if part else 0)]

        super().__init__(stops[-1] if stops else 0, make)
