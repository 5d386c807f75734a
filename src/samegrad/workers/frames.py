"""Messages between the launcher, the server that forks workers, and the workers: a kind, a rank and a payload.

They travel over socket pairs that are inherited by our own child processes and exist nowhere in the file system, so
both ends are ours: only what comes this way is unpickled.
"""

from __future__ import annotations

import contextlib
import enum
import json
import socket
import struct
from collections import deque
from typing import Any, NamedTuple

__all__ = ["Channel", "Frame", "Kind", "read_frame", "send_frame"]

_HEADER = struct.Struct("<BiQ")
_PIECE = 1 << 20


class Kind(enum.IntEnum):
    """What a message is."""

    REQUEST = 1  # launcher to server: JSON, how to start
    FUNCTION = 2  # launcher to workers: pickled function
    STARTED = 3  # server to launcher: JSON, the devices and the process ids of the workers
    REPORT = 4  # worker to launcher: JSON, whatever the function reports
    RESULT = 5  # worker to launcher: the function has returned; rank 0: pickled value
    FAILURE = 6  # worker to launcher: pickled (exception or None, its text, its traceback)
    DIED = 7  # server to launcher: JSON, the exit code of a worker that gave no answer
    REFUSED = 8  # server to launcher: pickled exception; no worker runs
    STOP = 9  # launcher to server: the workers shall stop when they can
    SAVING = 10  # worker to launcher: the folder that it saves to when it is asked to stop; none from now on, if empty


class Frame(NamedTuple):
    """One message; `rank` is -1 where it does not matter."""

    kind: Kind
    rank: int
    payload: bytes

    def json(self) -> dict[str, Any]:
        """The payload, of a kind that is JSON."""
        record: dict[str, Any] = json.loads(self.payload)
        return record


def send_frame(end: socket.socket, kind: Kind, payload: bytes, rank: int = -1) -> None:
    """Sends one message; blocks while the other end is busy."""
    end.sendall(_HEADER.pack(kind, rank, len(payload)))
    end.sendall(payload)


def read_frame(end: socket.socket) -> Frame | None:
    """Waits for the next message; None if the other end is closed."""
    header = _read(end, _HEADER.size)
    if header is None:
        return None
    kind, rank, length = _HEADER.unpack(header)
    payload = _read(end, length)
    return None if payload is None else Frame(Kind(kind), rank, payload)


def _read(end: socket.socket, nbytes: int) -> bytes | None:
    received = bytearray()
    while len(received) < nbytes:
        piece = end.recv(min(nbytes - len(received), _PIECE))
        if not piece:
            return None
        received += piece
    return bytes(received)


class Channel:
    """One end of a socket pair, for a process that has several and must not block on any of them.

    pending: bytes that were sent but still wait here for room. at_end: the other side sends nothing more.
    What is sent to a side that is gone is dropped; the reader then comes to its end.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._received = bytearray()
        self._unsent: deque[memoryview] = deque()
        self.pending = 0
        self.at_end = False

    def fileno(self) -> int:
        """For selectors."""
        return self._end.fileno()

    def send(self, kind: Kind, payload: bytes, rank: int = -1) -> None:
        """Sends one message as far as there is room; `flush` goes on with it."""
        self._unsent += [memoryview(_HEADER.pack(kind, rank, len(payload))), memoryview(payload)]
        self.pending += _HEADER.size + len(payload)
        self.flush()

    def flush(self) -> None:
        """Sends what waits, as far as there is room."""
        try:
            while self._unsent:
                piece = self._unsent[0]
                sent = self._end.send(piece) if piece else 0
                self.pending -= sent
                if sent < len(piece):
                    self._unsent[0] = piece[sent:]
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            pass
        except ConnectionError:
            self._unsent.clear()
            self.pending = 0

    def flush_all(self) -> None:
        """Sends what waits, however long the other side takes to read it or to go."""
        self._end.setblocking(True)
        self.flush()

    def receive(self) -> list[Frame] | None:
        """The messages that are complete with the next piece that has come; None if nothing has come."""
        try:
            piece = self._end.recv(_PIECE)
        except BlockingIOError:
            return None
        except ConnectionError:
            piece = b""
        self.at_end = self.at_end or not piece
        self._received += piece
        frames = []
        while len(self._received) >= _HEADER.size:
            kind, rank, length = _HEADER.unpack_from(self._received)
            end = _HEADER.size + length
            if len(self._received) < end:
                break
            frames.append(Frame(Kind(kind), rank, bytes(memoryview(self._received)[_HEADER.size : end])))
            del self._received[:end]
        return frames

    def finish(self) -> None:
        """Tells the other side that nothing more is sent, even if a forked process holds a copy of this end."""
        with contextlib.suppress(OSError):  # it is gone already
            self._end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Lets go of this end."""
        self._end.close()
