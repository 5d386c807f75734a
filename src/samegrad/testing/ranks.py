"""Ranks as threads of one process: the real shared-memory group, without starting workers.

What a rank finds is what it would find as a process of its own: another mapping of the same memory file, counters that
it alone writes, the same errors when a peer fails or does not come. Generators and torch's settings are those of the
process, so this is for code that talks in a group, not for training.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from samegrad.errors import PeerTimeout
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.memory import new_memory_file

__all__ = ["run_ranks"]

T = TypeVar("T")


def run_ranks(size: int, function: Callable[[SharedMemoryGroup], T], timeout_s: float = 20.0) -> list[T]:
    """Calls `function(group)` in `size` threads, each with its own end of one group; returns their values, by rank.

    timeout_s: how long a rank waits for the others in one exchange; all of them together may take twice as long.

    Raises the failure that came first; ranks that wait for one that has failed or returned get PeerFailed. PeerTimeout
    names the ranks that have not returned in time.
    """
    memory_fd = new_memory_file()
    try:
        groups = [SharedMemoryGroup(memory_fd, rank, size, timeout_s) for rank in range(size)]
    finally:
        os.close(memory_fd)  # the groups have mapped it
    values: dict[int, T] = {}
    failures: list[BaseException] = []

    def run(group: SharedMemoryGroup) -> None:
        try:
            values[group.rank] = function(group)
        except BaseException as error:
            failures.append(error)  # before `leave`, so that what follows from it stands behind it
        finally:
            group.counters.leave()

    threads = [threading.Thread(target=run, args=(group,), daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 2 * timeout_s  # a rank that gives up waiting says more than we could
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    if failures:
        raise failures[0]
    if late:
        ranks = f"rank{'s' * (len(late) > 1)} {', '.join(map(str, late))}"
        raise PeerTimeout(f"{ranks} of {size} did not return within {2 * timeout_s:g} s", rank=late[0])
    return [values[rank] for rank in range(size)]
