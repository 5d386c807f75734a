"""Where each rank waits, in memory that all ranks of a host map.

The groups of a job (see `Group.twin`) know nothing of each other. So a rank that waits in one of them for another rank,
which waits in a second one for the first, would be told no more than that nobody comes. Ranks that wait long therefore
write down where, and look at what the one that they wait for has written.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from samegrad.executors.operations import NAME_BYTES, packed_name, unpacked_name

__all__ = ["Counted", "Place", "Whereabouts"]

_HEADER = struct.Struct("<QQQ")
_KEPT_S = 5.0
_STRIDE = -(-(_HEADER.size + NAME_BYTES) // 64) * 64  # no two ranks share a cache line


@dataclass(frozen=True, slots=True)
class Place:
    """A wait in `group` for all to arrive at `ticket`, of `thread`, for `operation`."""

    group: int
    ticket: int
    thread: int
    operation: str


class Counted(Protocol):
    """What is asked of the counters of a group."""

    @property
    def arrived(self) -> int:
        """The last ticket of this rank."""
        ...

    def caller(self, rank: int) -> int:
        """The thread of `rank` that has made all of its calls; one that is no thread if there were several."""
        ...


class Whereabouts:
    """The places of `size` ranks in `memory` (zeroed, `Whereabouts.nbytes(size)` bytes), seen from `rank`."""

    def __init__(self, memory: memoryview, rank: int, size: int) -> None:
        self._memory, self._rank, self._size = memory, rank, size
        self._groups: WeakValueDictionary[int, Counted] = WeakValueDictionary()
        self._kept_until = 0.0  # of the monotonic clock

    @staticmethod
    def nbytes(size: int) -> int:
        """Bytes of memory that the places of `size` ranks take."""
        return size * _STRIDE

    def enter(self, group: int, counters: Counted) -> None:
        """The ranks also meet in `group`, a number that is the same on all of them and not 0, at `counters`."""
        self._groups[group] = counters

    def write(self, place: Place | None) -> None:
        """This rank waits at `place`; None: it goes on. Nothing for a while after `keep`."""
        if time.monotonic() < self._kept_until:
            return
        start = self._rank * _STRIDE
        if place is None:
            self._memory[start : start + _HEADER.size] = bytes(_HEADER.size)
            return
        record = _HEADER.pack(place.group, place.ticket, place.thread) + packed_name(place.operation)
        self._memory[start : start + len(record)] = record

    def keep(self) -> None:
        """What this rank has written stays there for some seconds, until the others have looked."""
        self._kept_until = time.monotonic() + _KEPT_S

    def read(self, rank: int) -> Place | None:
        """Where `rank` waits; None if it does not, or not for long. May be nonsense while it is being written."""
        start = rank * _STRIDE
        record = bytes(self._memory[start : start + _HEADER.size + NAME_BYTES])
        group, ticket, thread = _HEADER.unpack_from(record)
        return Place(group, ticket, thread, unpacked_name(record[_HEADER.size :])) if group else None

    def crossed(self, own: Place, other: int) -> Place | None:
        """Where rank `other` waits, if it and this rank, at `own`, wait for each other and neither can come.

        A rank with several threads may wait in one group and work on its way to another; so that is only said where
        all calls in both groups are made by the two threads that wait.
        """
        place = self.read(other)
        if place is None or place.group == own.group:
            return None
        here, there = self._groups.get(own.group), self._groups.get(place.group)
        if here is None or there is None or there.arrived >= place.ticket:
            return None
        is_single = here.caller(other) == place.thread and there.caller(self._rank) == own.thread
        return place if is_single else None

    def operations(self) -> dict[int, str]:
        """What the ranks that wait, wait for."""
        places = {rank: self.read(rank) for rank in range(self._size)}
        return {rank: place.operation for rank, place in places.items() if place is not None}
