"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["become_subreaper", "die_with_parent"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # of prctl, in linux/prctl.h


def die_with_parent(parent: int, number: int | None = None) -> None:
    """Asks the kernel to kill this process, or send it signal `number`, when its parent, the process `parent`, ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if number is None else number)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def become_subreaper() -> None:
    """Makes the kernel give this process what its children have started and left behind."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
