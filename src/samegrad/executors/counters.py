"""A barrier in two halves, made of one counter per rank in memory that all ranks map.

`arrive` counts this rank's own counter up; `wait` returns when every other counter has come as far. Between the two a
rank may work on something else. Only its owner writes a counter, so no atomic operation is needed.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable

from samegrad.errors import PeerFailed, PeerTimeout

__all__ = ["Counters", "HasLeft"]

HasLeft = Callable[[int], bool]

_STRIDE = 8  # counters lie 64 bytes apart, so that no two share a cache line
_LEFT = 1 << 63  # set in the counter of a rank that has left the group
_SPIN_S, _YIELD_S = 200e-6, 5e-3
_ORDERED_STORES = platform.machine().lower() in {"x86_64", "amd64", "i686", "i386"}


class Counters:
    """The counters of `size` ranks in `memory` (zeroed, `Counters.nbytes(size)` bytes), seen from `rank`.

    A wait spins briefly, then yields the core, then sleeps; with more ranks than cores it yields at once. It ends with
    PeerTimeout after `timeout_s` seconds, and with PeerFailed as soon as a rank that is waited for has left: it called
    `leave`, or `has_left(rank)` is true, which knows of ranks that left before they had counters too.
    """

    def __init__(
        self, memory: memoryview, rank: int, size: int, timeout_s: float, has_left: HasLeft = lambda _: False
    ) -> None:
        self._counts = memory.cast("Q")
        self._rank = rank
        self._others = [other for other in range(size) if other != rank]
        self._timeout_s = timeout_s
        self._has_left = has_left
        self._spin_s = _SPIN_S if size <= len(os.sched_getaffinity(0)) else 0.0
        self._lock = threading.Lock()
        self._ticket = 0

    @staticmethod
    def nbytes(size: int) -> int:
        """Bytes of memory that the counters of `size` ranks take."""
        return size * _STRIDE * 8

    def arrive(self) -> int:
        """All that this rank wrote before is visible to who waits for the ticket that is returned."""
        self._fence()
        self._ticket += 1
        self._counts[self._rank * _STRIDE] = self._ticket
        return self._ticket

    def wait(self, ticket: int) -> None:
        """Returns when all ranks have arrived at `ticket`."""
        counts = self._counts
        for other in self._others:
            if counts[other * _STRIDE] & ~_LEFT < ticket:
                self._wait_for(other, ticket)
        self._fence()

    def barrier(self) -> None:
        """`arrive` and `wait` in one."""
        self.wait(self.arrive())

    def leave(self) -> None:
        """Tells the others that this rank will not arrive any more."""
        self._counts[self._rank * _STRIDE] = self._ticket | _LEFT

    def _wait_for(self, other: int, ticket: int) -> None:
        counts, index = self._counts, other * _STRIDE
        start = time.monotonic()
        nap_s = 50e-6
        while (count := counts[index]) & ~_LEFT < ticket:
            waited = time.monotonic() - start
            if count & _LEFT or (self._has_left(other) and counts[index] & ~_LEFT < ticket):
                raise PeerFailed(
                    f"rank {self._rank} waits for rank {other} at its exchange {ticket}, but rank {other} has returned "
                    f"from the launched function after {count & ~_LEFT}; all ranks must make the same calls",
                    rank=other,
                )
            if waited > self._timeout_s:
                self._time_out(ticket)
            if waited > _YIELD_S:
                nap_s = min(nap_s * 1.2, 1e-3)
                time.sleep(nap_s)
            elif waited > self._spin_s:
                os.sched_yield()

    def _time_out(self, ticket: int) -> None:
        late = [other for other in self._others if self._counts[other * _STRIDE] & ~_LEFT < ticket]
        positions = ", ".join(f"rank {other} is at {self._counts[other * _STRIDE]}" for other in late)
        raise PeerTimeout(
            f"rank {self._rank} waited {self._timeout_s:g} s at exchange {ticket}, but {positions}: stopped, far "
            f"slower, or not making the same calls. If a step may take this long, give launch a longer timeout",
            rank=late[0] if late else -1,
        )

    def _fence(self) -> None:
        """Keeps stores before it from being seen after stores that follow it, where the processor might do so."""
        if not _ORDERED_STORES:
            for _ in range(2):  # what is before an unlock stays before it, what is after the next lock stays after it
                self._lock.acquire()
                self._lock.release()
