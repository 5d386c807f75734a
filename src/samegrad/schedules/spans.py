"""Rounds in short: consecutive chunks that go the same way are one row.

Where thousands of ranks move thousands of chunks, a round has hundreds of millions of transfers, but few different
ways. `SpannedRounds` keeps the short form and makes the transfers for who looks at them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from samegrad.schedules.rounds import ChainedRounds, GeneratedRounds, IntArray, Round, Rows

__all__ = ["Pieces", "SpannedRounds", "Spans", "chosen_of", "spans_of", "spread"]

_Integers = npt.NDArray[Any]
_DENSE = 1 << 26  # bounds that may be looked up in a table


@dataclass(frozen=True, slots=True, eq=False)
class Spans(Rows):
    """A round as an array of one row for each span: source, source slot, target, target slot, first chunk, chunk after
    the last one, operation."""

    @classmethod
    def of(cls, each: Round) -> Spans:
        """The transfers of a round, each continuing the one before where it can."""
        return cls(np.insert(each.rows, 5, each.chunk + 1, axis=1)).merged()

    @classmethod
    def joined(cls, parts: Sequence[Spans]) -> Spans:
        """All of `parts`, in one round."""
        return cls(np.concatenate([each.rows for each in parts]) if parts else np.empty((0, 7), np.int32))

    def merged(self) -> Spans:
        """The same, where a row that continues the one before is one with it."""
        rows = self.rows
        if len(rows) < 2:
            return self
        new = (rows[1:, [0, 1, 2, 3, 6]] != rows[:-1, [0, 1, 2, 3, 6]]).any(axis=1) | (rows[1:, 4] != rows[:-1, 5])
        starts = np.flatnonzero(np.append(True, new))
        merged = rows[starts]
        merged[:, 5] = rows[np.append(starts[1:], len(rows)) - 1, 5]
        return Spans(merged)

    def round(self) -> Round:
        """All transfers."""
        return self._at(spread(self.first, self.stop), self.stop - self.first)

    def only(self, chunks: _Integers) -> Round:
        """The transfers of these chunks, which are in ascending order."""
        first, stop = np.searchsorted(chunks, self.first), np.searchsorted(chunks, self.stop)
        return self._at(chunks[spread(first, stop)], stop - first)

    def _at(self, chunk: _Integers, lengths: _Integers) -> Round:
        rows = np.repeat(self.rows[:, [0, 1, 2, 3, 4, 6]], lengths, axis=0)
        rows[:, 4] = chunk
        return Round(rows)

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


class SpannedRounds(GeneratedRounds):
    """Rounds that are kept in short."""

    def __init__(self, spans: Sequence[Spans]) -> None:
        self.spans = spans
        super().__init__(len(spans), lambda number: spans[number].round())


def spans_of(rounds: Sequence[Round]) -> Iterator[Spans]:
    """Each round in short."""
    if isinstance(rounds, ChainedRounds):
        for part in rounds.parts:
            yield from spans_of(part)
    elif isinstance(rounds, SpannedRounds):
        yield from rounds.spans
    else:
        yield from map(Spans.of, rounds)


def chosen_of(rounds: Sequence[Round], chunks: _Integers, count: int) -> Iterator[Round]:
    """Each round, with the transfers of some of `count` chunks only, which are in ascending order."""
    if len(chunks) == count:
        yield from rounds
    elif isinstance(rounds, ChainedRounds):
        for part in rounds.parts:
            yield from chosen_of(part, chunks, count)
    elif isinstance(rounds, SpannedRounds):
        yield from (each.only(chunks) for each in rounds.spans)
    else:
        wanted = np.zeros(count, dtype=bool)
        wanted[chunks] = True
        yield from (each.where(wanted[each.chunk]) for each in rounds)


class Pieces:
    """The parts of buffers that matter: what lies between two bounds next to each other.

    Spans whose ends are all among the bounds cover whole pieces, of which there may be far fewer than chunks.
    """

    def __init__(self, bounds: _Integers) -> None:
        """bounds: both ends of every span, as numbers of which those of one buffer follow each other."""
        size = int(bounds.max(initial=-1)) + 1
        self._number: _Integers | None = None
        if size <= _DENSE:
            seen = np.zeros(size, dtype=bool)
            seen[bounds] = True
            self.bounds: _Integers = np.flatnonzero(seen)
            self._number = np.cumsum(seen, dtype=np.int64) - 1
        else:
            bounds = np.sort(bounds)
            self.bounds = bounds[np.append(True, np.diff(bounds) > 0)]

    def between(self, first: _Integers, stop: _Integers) -> tuple[_Integers, _Integers]:
        """The pieces of each span, and for each of them the place of its span. Piece p starts at `bounds[p]`."""
        start, end = self._find(first), self._find(stop)
        return spread(start, end), np.repeat(np.arange(len(start)), end - start)

    def _find(self, bounds: _Integers) -> _Integers:
        return np.searchsorted(self.bounds, bounds) if self._number is None else self._number[bounds]


def spread(starts: _Integers, stops: _Integers) -> _Integers:
    """The numbers of all the ranges from `starts[i]` to `stops[i]`, one after the other."""
    lengths = stops - starts
    ends = lengths.cumsum()
    numbers: _Integers = (starts - ends + lengths).repeat(lengths) + np.arange(ends[-1] if len(ends) else 0)
    return numbers
