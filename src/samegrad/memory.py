"""Memory files without a name (memfd), which processes of one host open through /proc to share what is in them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

__all__ = ["host_identity", "new_memory_file", "offered_memory", "open_memory_file", "open_offered"]

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
