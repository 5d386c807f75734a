"""Noticing that a process of this host has ended, which was not started together with this one."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence

__all__ = ["ProcessWatch"]

_GRACE_S = 1.5  # the launcher, which knows how the process ended, has so long to end this one


class ProcessWatch:
    """Notices the end of the processes `pids` (of this host, by rank)."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._polls: dict[int, select.poll] = {}
        self._ended_at: dict[int, float] = {}
        for rank, pid in enumerate(pids):
            try:
                self._polls[rank] = select.poll()
                self._polls[rank].register(os.pidfd_open(pid), select.POLLIN)
            except ProcessLookupError:
                self._ended_at[rank] = time.monotonic()
            except OSError:  # a kernel without: then only the deadline ends a wait
                continue

    def has_ended(self, rank: int) -> bool:
        """Whether the process of `rank` has ended, and nobody has ended this one for it meanwhile.

        A launcher ends all ranks when one fails, and says which. Two accounts of that are one too many.
        """
        if rank not in self._ended_at and self._polls[rank].poll(0):
            self._ended_at[rank] = time.monotonic()
        return rank in self._ended_at and time.monotonic() - self._ended_at[rank] > _GRACE_S
