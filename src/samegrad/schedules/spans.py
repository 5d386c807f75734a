"""Rounds in short: consecutive chunks that go the same way are one row.

Where thousands of ranks move thousands of chunks, a round has hundreds of millions of transfers, but few different
ways. `SpannedRounds` keeps the short form and makes the transfers only for who looks at them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from samegrad.schedules.ir import ChainedRounds, IntArray, Round

__all__ = ["Spans", "spans_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """A round as an array of one row for each span: source, source slot, target, target slot, first chunk, chunk after
    the last one, operation."""

    rows: IntArray

    @classmethod
    def of(cls, each: Round) -> Spans:
        """The transfers of a round, where each continues the one before as long as it can."""
        rows = each.rows
        if not len(rows):
            return cls(np.empty((0, 7), np.int32))
        steps = np.diff(rows, axis=0)
        steps[:, 4] -= 1
        starts = np.flatnonzero(np.append(True, steps.any(axis=1)))
        stops = np.append(starts[1:], len(rows))
        short = rows[starts]
        return cls(np.column_stack([short[:, :5], rows[stops - 1, 4] + 1, short[:, 5]]))

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

    @property
    def first(self) -> IntArray:
        """The first chunks."""
        return self.rows[:, 4]

    @property
    def stop(self) -> IntArray:
        """The chunks after the last ones."""
        return self.rows[:, 5]

    @property
    def op(self) -> IntArray:
        """The operations, values of `Op`."""
        return self.rows[:, 6]

    def __len__(self) -> int:
        return len(self.rows)


def spans_of(rounds: Sequence[Round]) -> Iterator[Spans]:
    """Each round in short."""
    if isinstance(rounds, ChainedRounds):
        for part in rounds.parts:
            yield from spans_of(part)
    else:
        yield from map(Spans.of, rounds)
