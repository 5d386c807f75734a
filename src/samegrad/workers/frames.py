"""Messages between the launcher, the server that forks workers, and the workers: a kind, a rank and a payload.

They travel over socket pairs that are inherited by our own child processes and exist nowhere in the file system, so
both ends are ours: this is the one place where objects are pickled.
"""

from __future__ import annotations

import enum
import json
import socket
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["Frame", "FrameReader", "Kind", "read_frame", "send_frame"]

_HEADER = struct.Struct("<BiQ")


class Kind(enum.IntEnum):
    """What a message is."""

    REQUEST = 1  # launcher to server: JSON, how to start
    FUNCTION = 2  # launcher to workers: pickled function
    STARTED = 3  # server to launcher: JSON, the devices of the workers
    REPORT = 4  # worker to launcher: JSON, whatever the function reports
    RESULT = 5  # worker to launcher: pickled value
    FAILURE = 6  # worker to launcher: pickled (exception or None, its text, its traceback)
    DIED = 7  # server to launcher: JSON, the exit code of a worker that gave no answer
    REFUSED = 8  # server to launcher: pickled exception; nothing was started


class Frame(NamedTuple):
    """One message; `rank` is -1 where it does not matter."""

    kind: Kind
    rank: int
    payload: bytes

    def json(self) -> dict[str, Any]:
        """The payload, of a kind that is JSON."""
        record: dict[str, Any] = json.loads(self.payload)
        return record


def send_frame(channel: socket.socket, kind: Kind, payload: bytes, rank: int = -1) -> None:
    """Sends one message; blocks while the other end is busy."""
    channel.sendall(_HEADER.pack(kind, rank, len(payload)))
    channel.sendall(payload)


def read_frame(channel: socket.socket) -> Frame | None:
    """Waits for the next message; None if the other end is closed."""
    header = _read(channel, _HEADER.size)
    if header is None:
        return None
    kind, rank, length = _HEADER.unpack(header)
    payload = _read(channel, length)
    return None if payload is None else Frame(Kind(kind), rank, payload)


def _read(channel: socket.socket, nbytes: int) -> bytes | None:
    received = bytearray()
    while len(received) < nbytes:
        piece = channel.recv(min(nbytes - len(received), 1 << 20))
        if not piece:
            return None
        received += piece
    return bytes(received)


class FrameReader:
    """Messages out of whatever pieces a channel delivers, for a reader that must not block on one channel."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, piece: bytes) -> Iterator[Frame]:
        """The messages that are complete with `piece`."""
        self._received += piece
        while len(self._received) >= _HEADER.size:
            kind, rank, length = _HEADER.unpack_from(self._received)
            end = _HEADER.size + length
            if len(self._received) < end:
                return
            payload = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            yield Frame(Kind(kind), rank, payload)
