"""Handing file descriptors from a loader worker to its rank.

multiprocessing has a way of its own, by a socket in a temporary folder, which stays behind when a process is killed.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct

__all__ = ["DescriptorPipe", "receive_descriptor"]

_FD = struct.Struct("i")
_numbers = itertools.count()
_open: dict[int, DescriptorPipe] = {}


class DescriptorPipe:
    """What one loader worker sends, its rank receives in the same order, also when the loader worker has died since.

    To be made by the rank, before it starts the loader worker; forked or pickled, it gets there. What nobody has
    received when both have closed it, the kernel closes.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self._theirs, self._ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _open[self.number] = self

    def __reduce__(self) -> tuple[object, ...]:
        return _Sender, (self.number, self._theirs)

    def send(self, fd: int) -> None:
        """Sends a copy of `fd`; waits as long as many others are on their way. Raises OSError if there are too many."""
        socket.send_fds(self._theirs, [b"\0"], [fd])

    def receive(self) -> int:
        """The descriptor that was sent first; it must have been. Raises OSError if this process has none left."""
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC  # which socket.recv_fds would leave out
        sent = self._ours.recvmsg(1, socket.CMSG_SPACE(_FD.size), flags)[1]
        if not sent:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return int(_FD.unpack(sent[0][2])[0])

    def close(self) -> None:
        """Closes it here."""
        _open.pop(self.number, None)
        self._theirs.close()
        self._ours.close()


class _Sender(DescriptorPipe):
    """The end of a loader worker that was not forked."""

    def __init__(self, number: int, theirs: socket.socket) -> None:
        self.number, self._theirs = number, theirs


def receive_descriptor(number: int) -> int:
    """Receives from the pipe of this number, which must be open."""
    return _open[number].receive()
