"""Memory files without a name (memfd), which processes of one host open through /proc to share what is in them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

__all__ = ["new_memory_file", "open_memory_file"]

_NAME = "samegrad"


def new_memory_file() -> int:
    """The descriptor of a new memory file, which is empty. Raises OSError."""
    return os.memfd_create(_NAME, os.MFD_CLOEXEC)


def open_memory_file(pid: int, number: int) -> int:
    """A descriptor of the memory file that process `pid` of this host has as its descriptor `number`.

    Who names it may be anybody who reaches the ranks; so what is opened is a memory file of samegrad and of this user,
    or nothing. Raises OSError if it is not, and where this process may not open it.
    """
    path = f"/proc/{int(pid)}/fd/{int(number)}"
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)  # refused for all but files in memory
        is_own = os.fstat(fd).st_uid == os.geteuid()
        if is_own and str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(f"/memfd:{_NAME}"):
            return fd
    except OSError:
        pass
    os.close(fd)
    raise PermissionError(f"{path} is no memory of samegrad and of this user")
