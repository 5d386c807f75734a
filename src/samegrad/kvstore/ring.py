"""Bytes from one process of a host to another, through memory that both map: a ring with one writer and one reader.

    memory   [ written | read | ................ data ................ ]

`written` and `read` count bytes from the beginning; only the writer writes the first, only the reader the second. What
is between the two is in the ring. Who has to wait tries a few times, then sleeps briefly, and asks `is_there` now and
then whether the other side still is.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable, Iterator

import numpy as np

from samegrad.errors import FrameRefused
from samegrad.memory import new_memory_file

__all__ = ["RING_BYTES", "Ring", "new_rings", "rings_in"]

RING_BYTES = 1 << 24
"""Of data: a few slices, so that both sides work at the same time, in a cache that they share."""

_HEADER = 128  # bytes: a cache line for each counter
_CHUNK = 1 << 19  # bytes that are copied before the other side is told
_TRIES = 50
_NAP_S = 50e-6
_LOOK_S = 0.01


class Ring:
    """One end of the ring in `memory`. timeout_s: how long nothing may happen before TimeoutError.

    is_there: raises ConnectionError when the other side has gone.
    """

    def __init__(self, memory: np.ndarray, is_there: Callable[[], None], timeout_s: float) -> None:
        counters = memory[:_HEADER].view(np.uint64)
        self._written, self._read = counters[:1], counters[8:9]
        self._data = memory[_HEADER:]
        self._is_there = is_there
        self.timeout_s = timeout_s

    def write(self, piece: memoryview) -> None:
        """Copies all of `piece` into the ring, as there is room."""
        source, at, size = np.frombuffer(piece, np.uint8), int(self._written[0]), len(self._data)
        while len(source):
            room = size - self._wait(lambda at=at: at - int(self._read[0]), size)  # type: ignore[misc]
            start = at % size
            count = min(len(source), room, size - start, _CHUNK)
            self._data[start : start + count] = source[:count]
            source, at = source[count:], at + count
            self._written[0] = at

    def read_into(self, target: memoryview) -> None:
        """Copies as many bytes as `target` has out of the ring, as they come."""
        into, at, size = np.frombuffer(target, np.uint8), int(self._read[0]), len(self._data)
        while len(into):
            there = size - self._wait(lambda at=at: size - (int(self._written[0]) - at), size)  # type: ignore[misc]
            start = at % size
            count = min(len(into), there, size - start)
            into[:count] = self._data[start : start + count]
            into, at = into[count:], at + count
            self._read[0] = at

    def _wait(self, missing: Callable[[], int], size: int) -> int:
        """Returns what `missing` says, when that is less than `size`, the bytes of the whole ring."""
        tries, began, looked = 0, 0.0, 0.0
        while (found := missing()) == size:
            tries += 1
            if tries < _TRIES:
                os.sched_yield()
                continue
            now = time.monotonic()
            began, looked = began or now, looked or now
            if now - began > self.timeout_s:
                raise TimeoutError("nothing moves in the memory that both sides share")
            if now - looked > _LOOK_S:
                looked = now
                self._is_there()
            time.sleep(_NAP_S)
        if not 0 <= found < size:
            raise FrameRefused(f"the counters of shared memory cannot be: {found} of {size} bytes")
        return found


@contextlib.contextmanager
def new_rings() -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """A new memory file with two rings, and their memory: from who makes it, and to it. Within, others may open it."""
    fd = new_memory_file()
    try:
        os.ftruncate(fd, 2 * (_HEADER + RING_BYTES))
        yield fd, *rings_in(fd)
    finally:
        os.close(fd)  # who has mapped it keeps the memory


def rings_in(fd: int) -> tuple[np.ndarray, np.ndarray]:
    """The memory of the two rings in the memory file `fd`. Raises OSError or ValueError for one that has none."""
    size = 2 * (_HEADER + RING_BYTES)
    if os.fstat(fd).st_size != size:
        raise ValueError(f"expected a memory file of {size} bytes; got {os.fstat(fd).st_size}")
    both = np.frombuffer(mmap.mmap(fd, size), np.uint8)
    return both[: size // 2], both[size // 2 :]
