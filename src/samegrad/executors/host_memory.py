"""Memory files of a size, for ranks of one host: their pages are taken when they are made, or they are refused."""

from __future__ import annotations

import errno
import mmap
import os

from samegrad.machine import available_memory
from samegrad.memory import new_memory_file
from samegrad.units import format_bytes

__all__ = ["explained", "map_memory", "take_memory"]


def take_memory(nbytes: int) -> int:
    """An anonymous memory file of `nbytes`, zeroed. Its pages are taken now: a lack of memory later would be a bus
    error.

    Taking more than there is would not fail but have the kernel kill processes, so that is refused before. Raises
    OSError.
    """
    available = available_memory()
    if nbytes > available:
        raise OSError(
            errno.ENOMEM,
            f"{format_bytes(available)} are available. Use fewer workers, a smaller model, or a machine (or container) "
            f"with more memory",
        )
    fd = new_memory_file()
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        raise explained(error) from error
    return fd


def explained(error: OSError) -> OSError:
    """`error`, in words that say what to do."""
    if error.errno == errno.EFBIG:
        return OSError(errno.EFBIG, "it is larger than files may be; raise that limit (ulimit -f)")
    return error


def map_memory(fd: int, nbytes: int) -> memoryview:
    """The first `nbytes` of a memory file, which gets as long if it is shorter. Raises OSError."""
    os.posix_fallocate(fd, 0, nbytes)
    return memoryview(mmap.mmap(fd, nbytes))
