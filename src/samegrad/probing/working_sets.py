"""What loops over memory need: the loops, fresh memory in large pages, and threads that run at the same time."""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from samegrad.errors import ConfigurationError
from samegrad.machine import usable_cores

__all__ = ["compiled_loops", "fresh_words", "thread_counts", "together"]

_HUGE_PAGE = 1 << 21


def compiled_loops() -> ModuleType:
    """`kernels`. Raises ConfigurationError where numba is missing."""
    try:
        from samegrad.probing import kernels
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"needs {error.name}, which compiles its loops: pip install 'samegrad[probe]'"
        ) from error
    return kernels


def thread_counts() -> list[int]:
    """1, 2, 4, ... up to the cores that can be used."""
    cores = usable_cores()
    return sorted({*(1 << power for power in range(cores.bit_length()) if 1 << power <= cores), cores})


def fresh_words(nbytes: int) -> NDArray[np.int64]:
    """Fresh memory, all zero, at the start of a large page; none of it has been touched."""
    area = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        area.madvise(mmap.MADV_HUGEPAGE)
    base = np.frombuffer(area, dtype=np.uint8)
    start = -base.ctypes.data % _HUGE_PAGE
    return base[start : start + nbytes].view(np.int64)


def together(works: Sequence[Callable[[], object]]) -> float:
    """Seconds from the start of all `works`, each in a thread, to the end of the last.

    A single one is done right here, and what counts is the time that it was on a core, not what other programs took.
    """
    if len(works) == 1:
        start = time.thread_time()
        works[0]()
        return time.thread_time() - start
    gate = threading.Barrier(len(works))
    times: list[tuple[float, float]] = []

    def run(work: Callable[[], object]) -> None:
        gate.wait(60)
        start = time.perf_counter()
        work()
        times.append((start, time.perf_counter()))

    threads = [threading.Thread(target=run, args=[work], daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if len(times) < len(works):
        raise ConfigurationError("a thread that measures memory has not come to its end")
    return max(end for _, end in times) - min(start for start, _ in times)
