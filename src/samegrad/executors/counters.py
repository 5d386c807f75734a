"""A barrier in two halves, made of one counter per rank in memory that all ranks map.

`arrive` counts this rank's own counter up; `wait` returns when every other counter has come as far. Between the two a
rank may work on something else. Only its owner writes a counter, so no atomic operation is needed.

Beside its count each rank says what it has arrived for, in one number for each of its last tickets; they stand in the
cache line that is read anyway, so that ranks which meet for different operations notice it for nothing.

    memory of a rank:   count | tag of ticket 0, 7, 14 ... | 1, 8, 15 ... | ... | 6, 13, 20 ...      one cache line
    behind all those:   the names of the operations, for messages, 7 of each rank; the thread of each that arrives
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from samegrad.errors import PeerFailed, PeerTimeout
from samegrad.executors.operations import NAME_BYTES, check_operations, packed_name, tag, unpacked_name
from samegrad.executors.patience import Patience
from samegrad.executors.pauses import Pauses, spinning_s
from samegrad.executors.whereabouts import Place, Whereabouts
from samegrad.machine import orders_stores

__all__ = ["Counters", "HasLeft"]

HasLeft = Callable[[int], bool]

_STRIDE = 8  # counters lie 64 bytes apart, so that no two share a cache line
_RECENT = _STRIDE - 1  # tickets whose operations are kept; a rank that waits at each is never that far ahead
_LEFT = 1 << 63  # set in the counter of a rank that has left the group
_LONG_S = 0.5  # after such a wait a rank says where it waits, and looks where the other one is
_SEVERAL = (1 << 64) - 1  # in place of a thread
_ORDERED_STORES = orders_stores()


class Counters:
    """The counters of `size` ranks in `memory` (zeroed, `Counters.nbytes(size)` bytes), seen from `rank`.

    A wait spins briefly, then yields the core, then sleeps; with more ranks than cores it yields at once. It ends with
    PeerTimeout after `timeout_s` seconds (None: see `Patience`; the first one: `start_timeout_s`, if given), and with
    PeerFailed as soon as a rank that is waited for has left: it called `leave`, or `has_left(rank)` is true, which
    knows of ranks that left before they had counters too.
    """

    def __init__(
        self,
        memory: memoryview,
        rank: int,
        size: int,
        timeout_s: float | None,
        has_left: HasLeft = lambda _: False,
        start_timeout_s: float | None = None,
    ) -> None:
        self._counts = memory.cast("Q")
        self._names = memory[size * _STRIDE * 8 :]
        self._callers = memory[size * (_STRIDE * 8 + _RECENT * NAME_BYTES) :].cast("Q")
        self._thread = 0  # that has made the last call
        self._whereabouts: Whereabouts | None = None
        self._group = 0
        self._size = size
        self._rank = rank
        self._others = [other for other in range(size) if other != rank]
        self._patience = Patience(timeout_s)
        self._start_timeout_s = self._patience.seconds if start_timeout_s is None else start_timeout_s
        self._has_left = has_left
        self._spin_s = spinning_s(size)
        self._lock = threading.Lock()
        self._ticket = 0
        self._passed = 0  # the last ticket that all have been seen at

    @staticmethod
    def nbytes(size: int) -> int:
        """Bytes of memory that the counters of `size` ranks take."""
        return size * (_STRIDE * 8 + _RECENT * NAME_BYTES + 8)

    def enter(self, whereabouts: Whereabouts, group: int) -> None:
        """From now on a rank that waits in vain is told by `whereabouts` if the other one waits in another group."""
        self._whereabouts, self._group = whereabouts, group
        whereabouts.enter(group, self)

    @property
    def arrived(self) -> int:
        """See `Counted`."""
        return self._ticket

    def caller(self, rank: int) -> int:
        """See `Counted`."""
        return self._callers[rank]

    def arrive(self, operation: str) -> int:
        """All that this rank wrote before is visible to who waits for the ticket that is returned."""
        self._patience.arrived()
        if threading.get_ident() != self._thread:
            self._callers[self._rank] = _SEVERAL if self._thread else threading.get_ident()
            self._thread = threading.get_ident()
        ticket = self._ticket + 1
        start = self._name_at(self._rank, ticket)
        self._names[start : start + NAME_BYTES] = packed_name(operation)
        self._counts[self._tag_at(self._rank, ticket)] = tag(operation)
        self._fence()
        self._ticket = ticket
        self._counts[self._rank * _STRIDE] = ticket
        return ticket

    def wait(self, ticket: int) -> None:
        """Returns when all ranks have arrived at `ticket`; raises CallMismatch if not all did so for one operation."""
        if ticket <= self._passed:
            return
        counts = self._counts
        for other in self._others:
            if counts[other * _STRIDE] & ~_LEFT < ticket:
                self._wait_for(other, ticket)
        self._fence()
        self._passed = ticket
        self._patience.waited()
        if self._ticket - ticket >= _RECENT:  # many exchanges were started first: this one's tag is overwritten
            return
        own = counts[self._tag_at(self._rank, ticket)]
        for other in self._others:
            differs = counts[self._tag_at(other, ticket)] != own
            # One that is as far ahead may have overwritten its tag.
            if differs and (counts[other * _STRIDE] & ~_LEFT) - ticket < _RECENT - 1:
                check_operations({rank: self._operation(rank, ticket) for rank in range(self._size)})

    def barrier(self, operation: str) -> None:
        """`arrive` and `wait` in one."""
        self.wait(self.arrive(operation))

    def has_left(self, rank: int) -> bool:
        """Whether nothing more will come from `rank`."""
        return bool(self._counts[rank * _STRIDE] & _LEFT) or self._has_left(rank)

    def leave(self) -> None:
        """Tells the others that this rank will not arrive any more."""
        self._counts[self._rank * _STRIDE] = self._ticket | _LEFT

    def _wait_for(self, other: int, ticket: int) -> None:
        counts, index = self._counts, other * _STRIDE
        pauses = Pauses(self._spin_s)
        timeout_s = self._start_timeout_s if ticket == 1 else self._patience.seconds
        look_at, elsewhere = _LONG_S, None
        while (count := counts[index]) & ~_LEFT < ticket:
            waited = pauses.waited()
            if count & _LEFT or (self._has_left(other) and counts[index] & ~_LEFT < ticket):
                self._go_on()
                raise PeerFailed(
                    f"rank {self._rank} waits for rank {other} at {self._place(self._rank, ticket)}, but rank {other} "
                    f"has ended {self._since(other)}: it returned from the launched function, or its process ended. "
                    f"All ranks must make the same calls",
                    rank=other,
                )
            if waited > timeout_s:
                self._time_out(ticket, timeout_s)
            if waited > look_at and self._whereabouts is not None:
                elsewhere = self._look_for(other, ticket, self._whereabouts, elsewhere)
                look_at = waited + _LONG_S
            pauses.pause(waited)
        if look_at > _LONG_S:
            self._go_on()

    def _go_on(self) -> None:
        if self._whereabouts is not None:
            self._whereabouts.write(None)

    def _look_for(self, other: int, ticket: int, whereabouts: Whereabouts, before: Place | None) -> Place | None:
        """Where `other` waits for this rank, if neither can come. before: what this returned the last time."""
        own = Place(self._group, ticket, threading.get_ident(), self._operation(self._rank, ticket))
        whereabouts.write(own)
        found = whereabouts.crossed(own, other)
        if found is not None and found == before:
            whereabouts.keep()  # this rank is about to leave; the other one has to see the same
            check_operations(whereabouts.operations())
        return found

    def _time_out(self, ticket: int, timeout_s: float) -> None:
        late = [other for other in self._others if self._counts[other * _STRIDE] & ~_LEFT < ticket]
        waiting = {} if self._whereabouts is None else self._whereabouts.operations()
        places = ", ".join(
            f"rank {other} was last seen {self._since(other)}"
            + (f" and waits at {waiting[other]!r}" if other in waiting else "")
            for other in late
        )
        self._go_on()
        raise PeerTimeout(
            f"rank {self._rank} waited {timeout_s:g} s at {self._place(self._rank, ticket)}, but {places}: "
            f"stopped, far slower, or not making the same calls. If a step may take this long, give launch a longer "
            f"timeout",
            rank=late[0] if late else -1,
        )

    def _place(self, rank: int, ticket: int) -> str:
        return f"{self._operation(rank, ticket)!r} (exchange {ticket})"

    def _since(self, rank: int) -> str:
        ticket = self._counts[rank * _STRIDE] & ~_LEFT
        return f"after {self._place(rank, ticket)}" if ticket else "before its first exchange"

    def _operation(self, rank: int, ticket: int) -> str:
        start = self._name_at(rank, ticket)
        return unpacked_name(bytes(self._names[start : start + NAME_BYTES]))

    def _tag_at(self, rank: int, ticket: int) -> int:
        return rank * _STRIDE + 1 + ticket % _RECENT

    def _name_at(self, rank: int, ticket: int) -> int:
        return (rank * _RECENT + ticket % _RECENT) * NAME_BYTES

    def _fence(self) -> None:
        """Keeps stores before it from being seen after stores that follow it, where the processor might do so."""
        if not _ORDERED_STORES:
            for _ in range(2):  # what is before an unlock stays before it, what is after the next lock stays after it
                self._lock.acquire()
                self._lock.release()
