"""Ranks of one host that were not started together: memory that all of them map, and noticing that one has ended."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from pathlib import Path

from samegrad.memory import open_memory_file

__all__ = ["ProcessWatch", "host_identity", "offered_memory", "open_offered"]

_GRACE_S = 1.5  # the launcher, which knows how the process ended, has so long to end this one


def host_identity() -> str:
    """Text that is equal for processes of one host: of one boot of a kernel, and of one network namespace in it.

    Where the system does not tell, it is equal for nobody else.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return f"{os.uname().nodename} {os.getpid()}"


def offered_memory(fd: int) -> list[int]:
    """The number of the memory file `fd` of this process, and what tells others that it is that one."""
    found = os.fstat(fd)
    return [fd, found.st_dev, found.st_ino]


def open_offered(pid: int, offer: Sequence[int]) -> int:
    """A descriptor of the memory file that process `pid` of this host has offered.

    Raises OSError where this process may not open it, or finds another file there (in another PID namespace).
    """
    number, device, inode = offer
    fd = open_memory_file(pid, number)
    found = os.fstat(fd)
    if (found.st_dev, found.st_ino) != (device, inode):
        os.close(fd)
        raise FileNotFoundError(f"/proc/{pid}/fd/{number} is another file here")
    return fd


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
