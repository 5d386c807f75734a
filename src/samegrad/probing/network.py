"""Network: round trips over TCP and UDP, what a message costs, and bandwidth, to this host or to another one.

Both ends are Python: some microseconds of each round trip are its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import time
from collections.abc import Iterator

from samegrad.errors import ConfigurationError
from samegrad.probing.effort import Effort, repeated
from samegrad.probing.helper import helper_listening
from samegrad.probing.task import Task
from samegrad.probing.wire import ECHO, MAGIC, REQUEST, SINK, TOKEN_BYTES, limit_waits, receive_exactly
from samegrad.timing import Spread

__all__ = ["DEFAULT_PORT", "network", "split_address"]

DEFAULT_PORT = 4199
_CONNECT_S, _ANSWER_S = 5.0, 15.0
_DATAGRAM_S = 1.0
_ELSEWHERE = "Is `samegrad probe --listen` running there, and does the network let it be reached?"
_AT_HOME = "A process of samegrad's own listens there: is the loopback interface up, and not filtered?"
_LOST = 20  # datagrams in a row after which there is no use in sending more


@contextlib.contextmanager
def network(effort: Effort, address: str | None = None) -> Iterator[list[Task]]:
    """What is measured to `address` ("host", "host:port"), where `samegrad probe --listen` runs; None: to this host.

    Raises ConfigurationError if nothing answers there, or something else does.
    """
    with contextlib.ExitStack() as closing:
        if address is None:
            host, port, remedy = "127.0.0.1", closing.enter_context(helper_listening()), _AT_HOME
        else:
            (host, port), remedy = split_address(address), _ELSEWHERE
        peer = closing.enter_context(_Peer(host, port, remedy))
        yield _tasks(effort, peer, "loopback" if address is None else f"to {address}")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host", "host:port", "[::1]:port". Raises ConfigurationError."""
    host, colon, port = address.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")) or address.endswith("]"):
        host, port = address, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not int(port) < 1 << 16:
        raise ConfigurationError(
            f"expected an address such as host, host:{DEFAULT_PORT} or [::1]:port; got {address!r}"
        )
    return host, int(port)


class _Peer:
    """A connection to a `Listener`. remedy: what errors advise."""

    def __init__(self, host: str, port: int, remedy: str) -> None:
        where = f"{host} port {port}"
        try:
            self._tcp = socket.create_connection((host, port), timeout=_CONNECT_S)
        except OSError as error:
            raise ConfigurationError(f"{where}: no connection: {error.strerror or error}. {remedy}") from error
        try:
            self._tcp.settimeout(_ANSWER_S)
            self._tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._tcp.sendall(MAGIC)
            answer = receive_exactly(self._tcp, len(MAGIC))
            if answer != MAGIC:
                got = repr(answer) if answer else "the end of the connection"
                raise ConfigurationError(
                    f"{where}: something else answers there: expected {MAGIC!r}, got {got}. {remedy}"
                )
            self._token = receive_exactly(self._tcp, TOKEN_BYTES)
            port = int.from_bytes(receive_exactly(self._tcp, 2), "big")
            self._udp = socket.socket(self._tcp.family, socket.SOCK_DGRAM)
            limit_waits(self._udp, _DATAGRAM_S)
            self._udp.connect((self._tcp.getpeername()[0], port))
            limit_waits(self._tcp, _ANSWER_S)
        except OSError as error:
            self._tcp.close()
            raise ConfigurationError(f"{where}: no answer: {error.strerror or error}. {remedy}") from error
        except ConfigurationError:
            self._tcp.close()
            raise

    def __enter__(self) -> _Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._tcp.close()
        self._udp.close()

    def round_trip(self, size: int, count: int) -> float:
        """Seconds in which `size` bytes go there and back over TCP, the mean of `count` times."""
        message = os.urandom(size)
        buffer = memoryview(bytearray(size))
        self._tcp.sendall(REQUEST.pack(ECHO, size, count))
        start = time.perf_counter()
        for _ in range(count):
            self._tcp.sendall(message)
            left = buffer
            while len(left):
                left = left[self._received(left) :]
        return (time.perf_counter() - start) / count

    def send(self, size: int, count: int) -> float:
        """Seconds until `count` messages of `size` bytes, given to the system one by one, have all arrived."""
        message = os.urandom(size)
        self._tcp.sendall(REQUEST.pack(SINK, size, count))
        start = time.perf_counter()
        for _ in range(count):
            self._tcp.sendall(message)
        self._received(memoryview(bytearray(1)))
        return time.perf_counter() - start

    def datagram(self, count: int) -> float:
        """Seconds in which a datagram goes there and back, the mean of `count` that were not lost."""
        total, done, lost = 0.0, 0, 0
        while done < count:
            message = self._token + done.to_bytes(8, "big")
            start = time.perf_counter()
            try:
                self._udp.send(message)
                while self._udp.recv(1 << 16) != message:
                    pass
            except OSError as error:
                lost += 1
                if lost >= (1 if not done else _LOST):
                    raise ConfigurationError(
                        f"no datagram comes back ({_said(error)}); does a firewall leave UDP port "
                        f"{self._udp.getpeername()[1]} open?"
                    ) from error
                continue
            total += time.perf_counter() - start
            done += 1
        return total / done

    def _received(self, view: memoryview) -> int:
        try:
            got = self._tcp.recv_into(view)
        except BlockingIOError as error:
            raise TimeoutError(_said(error)) from None
        if not got:
            raise ConfigurationError("the other end has closed the connection")
        return got


def _said(error: OSError) -> str:
    return "timed out" if isinstance(error, BlockingIOError) else str(error)


def _tasks(effort: Effort, peer: _Peer, said: str) -> list[Task]:
    count = max(50, int(effort.seconds * 10_000))

    def round_trip(size: int) -> Spread:
        often = max(2, min(count, (1 << 25) // size))
        return repeated(effort, lambda: peer.round_trip(size, often))

    def rate(size: int, nbytes: int) -> Spread:
        often = max(4, nbytes // size)
        return repeated(effort, lambda: size * often / peer.send(size, often))

    def each() -> Spread:
        return rate(64, 64 * 10 * count).map(lambda bytes_per_second: 64 / bytes_per_second)

    large = max(1 << 25, int(effort.seconds * (1 << 31)))
    tasks = [
        Task("round trip over TCP", "s", lambda: round_trip(1), note=said),
        Task("round trip over UDP", "s", lambda: repeated(effort, lambda: peer.datagram(count)), note=said),
        Task("one of many messages of 64 bytes over TCP", "s", each, note=said),
        Task("send over TCP, 1 MB at a time", "B/s", lambda: rate(1 << 20, large), note=said),
    ]
    sizes = (64, 1024, 4096, 16384, 65536, 1 << 18, 1 << 20, 1 << 22)
    return [
        *tasks,
        *(
            Task(
                "network, TCP, one message there and back",
                "B/s",
                functools.partial(lambda size: round_trip(size).map(lambda seconds: 2 * size / seconds), size),
                x=size,
                note=said,
            )
            for size in sizes
        ),
    ]
