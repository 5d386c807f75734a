"""What ranks send each other in a schedule, and what must be done before each of it.

All that one rank sends another in a round is one message. What a rank moves within itself takes no link; what it moves
of the same chunks in a round, as far as consecutive chunks go the same way, is one message, too.

A message waits for those of earlier rounds that write a cell which it reads or writes, and for those that read a cell
which it writes. Within a round nothing waits: as schedules have it, all read what was there before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from samegrad.errors import ConfigurationError
from samegrad.schedules.ir import Op, Schedule
from samegrad.schedules.spans import Pieces, Spans, spans_of, spread
from samegrad.simulator.sharing import Floats, Integers

__all__ = ["MOST_MESSAGES", "Messages", "Waits", "messages_of"]

MOST_MESSAGES = 20_000_000
"""More would need tens of gigabytes."""

_Pairs = tuple[Integers, Integers]  # messages that others wait for, and those others


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Message `later[i]` waits for message `earlier[i]`: if `whole[i]` until what it brought has been added, else until
    it has arrived."""

    earlier: Integers
    later: Integers
    whole: Integers


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """By round. nbytes: of the message; added: of these, those that the target adds. Both are in parts of the buffer
    (all of it: the sum of the schedule's sizes) until they are scaled.

    waits: None if nobody asked.
    """

    number_of_round: Integers
    source: Integers
    target: Integers
    nbytes: Floats
    added: Floats
    waits: Waits | None

    def __len__(self) -> int:
        return len(self.source)

    def scaled(self, per_part: float) -> Messages:
        """In bytes, of which each part of the buffer has so many."""
        return replace(self, nbytes=self.nbytes * per_part, added=self.added * per_part)


def messages_of(schedule: Schedule, with_waits: bool) -> Messages:
    """The messages of a schedule, in parts of the buffer. Raises ConfigurationError if there are too many."""
    edges = np.cumsum([0, *schedule.sizes], dtype=np.int64)
    heads: list[tuple[Integers, ...]] = []
    spans: list[tuple[Integers, Integers]] = []
    count = 0
    for number, each in enumerate(spans_of(schedule.rounds)):
        parts = edges[each.stop] - edges[each.first]
        if not parts.all():  # chunks of no bytes are not sent
            each, parts = type(each)(each.rows[parts > 0]), parts[parts > 0]
        key, place, message = np.unique(_keys(each, schedule), return_index=True, return_inverse=True)
        heads.append(
            (
                np.full(len(key), number, np.int32),
                each.source[place],
                each.target[place],
                np.bincount(message, parts, len(key)),
                np.bincount(message, parts * (each.op == Op.ADD), len(key)),
            )
        )
        if with_waits:
            spans.append(((count + message).astype(np.int32), each.rows[:, :6]))
        count += len(key)
        if count > MOST_MESSAGES:
            raise ConfigurationError(
                f"{schedule.name}: more than {MOST_MESSAGES:,} messages, which is too much to simulate"
            )
    nothing = np.empty(0, np.int32)
    heads.append((nothing, nothing, nothing, np.empty(0), np.empty(0)))
    number_of_round, source, target, sent, added = (np.concatenate(column) for column in zip(*heads, strict=True))
    waits = None
    if with_waits:
        spans.append((nothing, np.empty((0, 6), np.int32)))
        message, rows = (np.concatenate(column) for column in zip(*spans, strict=True))
        waits = _waits(message, rows, number_of_round, schedule.chunks) if count else Waits(nothing, nothing, nothing)
    return Messages(number_of_round, source, target, sent, added, waits)


def _keys(each: Spans, schedule: Schedule) -> Integers:
    """Equal for what is one message: by ranks between ranks, by chunks within a rank."""
    source, chunks = each.source.astype(np.int64), schedule.chunks + 1
    between = source * schedule.ranks + each.target
    within = schedule.ranks**2 + (source * chunks + each.first) * chunks + each.stop
    return np.where(each.source == each.target, within, between)


def _waits(message: Integers, rows: Integers, number_of_round: Integers, chunks: int) -> Waits:
    slots = int(rows[:, [1, 3]].max()) + 1
    first, stop = rows[:, 4].astype(np.int64), rows[:, 5].astype(np.int64)
    bases = [(rows[:, place].astype(np.int64) * slots + rows[:, place + 1]) * (chunks + 1) for place in (0, 2)]
    pieces = Pieces(np.concatenate([base + edge for base in bases for edge in (first, stop)]))
    (read, reader), (written, writer) = (pieces.between(base + first, base + stop) for base in bases)
    reader, writer = message[reader], message[writer]
    rounds = int(number_of_round[-1]) + 1
    writes = _Writes(written, writer, number_of_round, rounds)
    found = [*writes.around_reads(read, reader), writes.one_after_the_other()]
    earlier, later = (np.concatenate([each[place] for each in found]) for place in (0, 1))
    whole = np.concatenate([np.full(len(each[0]), each is not found[1]) for each in found])
    if len(read) == len(message) == len(number_of_round):  # nothing is there twice
        return Waits(earlier, later, whole)
    key = (earlier.astype(np.int64) * len(number_of_round) + later) * 2 + ~whole
    key.sort()
    key = key[np.append(True, np.diff(key >> 1) > 0)[: len(key)]]
    pair = key >> 1
    return Waits(pair // len(number_of_round), pair % len(number_of_round), key % 2 == 0)


class _Writes:
    """What is written to each cell, in groups: all of one round."""

    def __init__(self, cell: Integers, message: Integers, number_of_round: Integers, rounds: int) -> None:
        key = cell * rounds + number_of_round[message]
        order = np.argsort(key, kind="stable")
        key, self._message = key[order], message[order]
        self._starts = np.flatnonzero(np.append(True, np.diff(key) > 0))
        self._stops = np.append(self._starts[1:], len(key))
        self._key = key[self._starts]
        self._cell = self._key // rounds
        self._number_of_round, self._rounds = number_of_round, rounds

    def around_reads(self, cell: Integers, message: Integers) -> tuple[_Pairs, _Pairs]:
        """The last writes in a round before each read, and the first ones in a round after it."""
        key = cell * self._rounds + self._number_of_round[message]
        place = np.searchsorted(self._key, key)
        known = np.flatnonzero((place > 0) & (self._cell[place - 1] == cell))
        written, read = self._crossed(place[known] - 1, message[known])
        place += np.append(self._key, -1)[place] == key
        follows = np.flatnonzero(np.append(self._cell, -1)[place] == cell)
        overwritten, read_before = self._crossed(place[follows], message[follows])
        return (written, read), (read_before, overwritten)

    def one_after_the_other(self) -> _Pairs:
        """Writes of each group, and those of the next group of the cell."""
        group = np.flatnonzero(np.diff(self._cell) == 0)
        starts, stops = self._starts[group + 1], self._stops[group + 1]
        return self._crossed(np.repeat(group, stops - starts), self._message[spread(starts, stops)])

    def _crossed(self, group: Integers, other: Integers) -> _Pairs:
        """Each of `other` with each message of its group."""
        if len(self._starts) == len(self._message):
            return self._message[group], other
        starts, stops = self._starts[group], self._stops[group]
        return self._message[spread(starts, stops)], np.repeat(other, stops - starts)
