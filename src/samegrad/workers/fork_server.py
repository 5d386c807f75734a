"""Preloaded by the fork server of loader workers: it then ends with its rank, and removes its rank's temporary folder.

multiprocessing puts the socket of the fork server there. The rank removes it, but not where a signal has ended it; and
the fork server by itself would wait for the loader workers. Imported anywhere else, this module does nothing.

What a fork server starts has this module, too, and finds in `server` whom it comes from, even if that has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

from samegrad.workers.parent import die_with_parent

__all__ = ["server"]

server: int | None = None
"""Process that this one is, or was forked from, if that is a fork server which preloaded this module."""

_RANK_HAS_ENDED = signal.SIGUSR2


def _end_with_rank(folder: Path) -> None:
    pid = os.getpid()

    def remove() -> None:
        if os.getpid() == pid:
            shutil.rmtree(folder, ignore_errors=True)

    def end(*_: object) -> None:
        remove()
        os._exit(0)

    atexit.register(remove)
    signal.signal(_RANK_HAS_ENDED, end)
    die_with_parent(os.getppid(), _RANK_HAS_ENDED)


def _sockets() -> Iterator[Path]:
    """The files of the sockets at which this process listens."""
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as end:
            if end.family == socket.AF_UNIX and end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield Path(os.fsdecode(end.getsockname()))


for path in _sockets():
    if path.name.startswith("listener-") and path.parent.name.startswith("pymp-"):
        server = os.getpid()
        _end_with_rank(path.parent)
