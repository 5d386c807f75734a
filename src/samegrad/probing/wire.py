"""What the two ends of a network measurement say to each other, over TCP; and the end that answers.

    client                                      server
    MAGIC                                  ->
                                           <-   MAGIC, a token of 16 bytes, and the UDP port (2 bytes)
    "E", size, count; then count times size
    bytes, each after the answer to the last    each is sent back
    "S", size, count; then size * count bytes   one byte, when all have come

Numbers are in network order. A datagram that begins with the token is sent back; all others are left alone. A server
believes nothing: sizes are limited, and a client that says nothing for a while is dropped.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable

__all__ = ["ECHO", "MAGIC", "MOST", "REQUEST", "SINK", "TOKEN_BYTES", "Listener", "limit_waits", "receive_exactly"]

MAGIC = b"samegrad probe 1\n"
REQUEST = struct.Struct("!cQQ")
ECHO, SINK = b"E", b"S"
TOKEN_BYTES = 16
MOST = 1 << 24  # bytes of one message
_MOST_IN_ALL = 1 << 36
_IDLE_S = 30.0
_LOOK_S = 0.1  # how often the listener looks whether it is to stop


class Listener:
    """Answers measurements on a TCP port and the UDP port of the same number, one client at a time.

    host, port: where to listen; port 0 takes a free one, `port` says which. Raises OSError if that cannot be.
    """

    def __init__(self, host: str, port: int) -> None:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with contextlib.ExitStack() as undo:
            self._tcp = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
            self._udp = undo.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._tcp.bind((host, port))
            self.port: int = self._tcp.getsockname()[1]
            self._udp.bind((host, self.port))
            self._tcp.listen(4)
            undo.pop_all()
        self._token = b""

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Answers until `is_over`, which is asked ten times a second while no client is there."""
        stop = threading.Event()
        datagrams = threading.Thread(target=self._answer_datagrams, args=[stop], daemon=True)
        datagrams.start()
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._tcp, selectors.EVENT_READ)
                while not is_over():
                    if selector.select(_LOOK_S):
                        self._answer_one()
        finally:
            stop.set()
            datagrams.join(2 * _LOOK_S + 1)
            self._tcp.close()
            self._udp.close()

    def _answer_one(self) -> None:
        with contextlib.suppress(OSError), self._tcp.accept()[0] as client:
            limit_waits(client, _IDLE_S)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not _says_magic(client):
                return
            self._token = os.urandom(TOKEN_BYTES)
            try:
                client.sendall(MAGIC + self._token + self.port.to_bytes(2, "big"))
                buffer = memoryview(bytearray(MOST))
                while request := receive_exactly(client, REQUEST.size):
                    kind, size, count = REQUEST.unpack(request)
                    if not 0 < size <= MOST or not 0 < count <= _MOST_IN_ALL // size:
                        return
                    if kind == ECHO:
                        for _ in range(count):
                            if not _fill(client, buffer[:size]):
                                return
                            client.sendall(buffer[:size])
                    elif kind == SINK:
                        left = size * count
                        while left:
                            got = client.recv_into(buffer[: min(left, MOST)])
                            if not got:
                                return
                            left -= got
                        client.sendall(b"k")
                    else:
                        return
            finally:
                self._token = b""

    def _answer_datagrams(self, stop: threading.Event) -> None:
        limit_waits(self._udp, _LOOK_S)
        while not stop.is_set():
            with contextlib.suppress(OSError):
                data, sender = self._udp.recvfrom(1 << 16)
                if self._token and data.startswith(self._token):
                    self._udp.sendto(data, sender)


def limit_waits(connection: socket.socket, seconds: float) -> None:
    """As `settimeout`, but the kernel keeps the time, and a wait that is over is a BlockingIOError.

    With a timeout of its own, Python asks the kernel before each call whether there is anything, which takes as long as
    the call.
    """
    connection.settimeout(None)
    whole = int(seconds)
    limit = struct.pack("ll", whole, round((seconds - whole) * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, limit)


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """The next `count` bytes; b"" if the other end closes before they have come."""
    data = bytearray(count)
    return bytes(data) if _fill(connection, memoryview(data)) else b""


def _says_magic(client: socket.socket) -> bool:
    """Whether a client begins as it must; false as soon as it does not."""
    said = b""
    while MAGIC.startswith(said) and said != MAGIC:
        more = client.recv(len(MAGIC) - len(said))
        if not more:
            return False
        said += more
    return said == MAGIC


def _fill(connection: socket.socket, view: memoryview) -> bool:
    while len(view):
        got = connection.recv_into(view)
        if not got:
            return False
        view = view[got:]
    return True
