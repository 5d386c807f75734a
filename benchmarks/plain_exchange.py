"""As many bytes both ways at the same time over plain sockets: what links and cores give a program that does no more.

python benchmarks/plain_exchange.py 10.0.0.2 4101     # the other side, until its standard input ends
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator, Sequence

__all__ = ["PlainPeers", "connected_plainly"]

_CHUNK = 1 << 20  # bytes that are read and written at a time, always into and from the same memory
_LENGTH_BYTES = 8
_TIMEOUT_S = 60.0


class PlainPeers:
    """Connections to other sides that send back as many bytes as they are sent."""

    def __init__(self, ends: Sequence[socket.socket]) -> None:
        self._ends = ends

    def exchange(self, nbytes: int) -> None:
        """Sends `nbytes` to each, and receives as many from each, all at the same time."""
        threads = [
            threading.Thread(target=work, args=(end, nbytes)) for end in self._ends for work in (_ask_and_send, _take)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def connected_plainly(addresses: Sequence[tuple[str, int]]) -> Iterator[PlainPeers]:
    """Connections to the other sides at `addresses`. Raises OSError if there is none."""
    with contextlib.ExitStack() as stack:
        ends = [stack.enter_context(socket.create_connection(each, _TIMEOUT_S)) for each in addresses]
        yield PlainPeers(ends)


def _ask_and_send(end: socket.socket, nbytes: int) -> None:
    end.sendall(nbytes.to_bytes(_LENGTH_BYTES, "little"))
    _give(end, nbytes)


def _give(end: socket.socket, nbytes: int) -> None:
    chunk = memoryview(bytes(_CHUNK))
    while nbytes:
        nbytes -= end.send(chunk[: min(nbytes, _CHUNK)])


def _take(end: socket.socket, nbytes: int) -> None:
    chunk = memoryview(bytearray(_CHUNK))
    while nbytes:
        count = end.recv_into(chunk, min(nbytes, _CHUNK))
        if not count:
            raise ConnectionResetError("the other side has gone")
        nbytes -= count


def _serve(end: socket.socket) -> None:
    with end, contextlib.suppress(ConnectionError):
        while length := end.recv(_LENGTH_BYTES, socket.MSG_WAITALL):
            nbytes = int.from_bytes(length, "little")
            thread = threading.Thread(target=_give, args=(end, nbytes))
            thread.start()
            _take(end, nbytes)
            thread.join()


def _accept(listener: socket.socket) -> None:
    while True:
        end, _ = listener.accept()
        threading.Thread(target=_serve, args=(end,), daemon=True).start()


if __name__ == "__main__":
    with socket.create_server((sys.argv[1], int(sys.argv[2]))) as served:
        threading.Thread(target=_accept, args=(served,), daemon=True).start()
        sys.stdin.read()
