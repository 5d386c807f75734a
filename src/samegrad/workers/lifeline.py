"""Whether the other ranks live: a connection to each, on which nothing is said while all is well.

The kernel ends the connections of a process that dies, whatever it was doing; one that stands still, or is busy for
long, keeps them. So the end of a connection needs no deadline and raises no false alarm. A rank that leaves says so
before; one that gives up because of another rank says why, so that all name the same one. On demand each says where
it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

__all__ = ["Fall", "Lifeline", "Whereabouts"]

_GRACE_S = 1.5  # a launcher, which knows how the process ended, has so long to end this one
_LEAVING_S = 10.0  # what a rank has sent before it left may still be on its way
_LONGEST = 1 << 16  # bytes of a line
_PIECE = 1 << 12


@dataclass(frozen=True, slots=True)
class Fall:
    """Why the exchanges of the group cannot go on.

    rank: whose fault it is. why: what has happened, to be read after "rank 1". is_late: it may still come.
    teller: the rank that says so, if not this one has seen it. has_left: it has ended by itself.
    """

    rank: int
    why: str
    is_late: bool = False
    teller: int = -1
    has_left: bool = False


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """A rank waits at operation `at`; or, if that is "", is busy. It was at operation `after` `since_s` seconds ago."""

    at: str
    after: str
    since_s: float


class Lifeline:
    """Connections `ends` of `rank` to all others, whose hosts have the names `hosts`, by rank."""

    def __init__(self, rank: int, ends: Mapping[int, socket.socket], hosts: Sequence[str]) -> None:
        self.rank, self.size, self.hosts = rank, len(hosts), tuple(hosts)
        self.has_fallen = False
        """Whether there is a fall that ends all waiting."""
        self._ends = dict(ends)
        self._said = {other: bytearray() for other in ends}
        self._falls: list[tuple[float, Fall]] = []  # when each was noticed
        self._answers: dict[int, Whereabouts] = {}
        self._has_told = self._is_closed = False
        self._changed = threading.Condition()
        self._where: Callable[[], Whereabouts] = lambda: Whereabouts("", "", 0.0)
        self._on_fall: Callable[[], None] = lambda: None
        self._waker, self._wakes = socket.socketpair()
        self._listener = threading.Thread(target=self._listen, name="lifeline", daemon=True)
        _open.add(self)

    def start(self, where: Callable[[], Whereabouts], on_fall: Callable[[], None]) -> None:
        """From now on others are told `where` this rank is; `on_fall` is called, by a thread, when all who wait must
        be told to stop."""
        self._where, self._on_fall = where, on_fall
        self._listener.start()

    def falls(self) -> list[Fall]:
        """What has been noticed: processes that broke off, then what others say, then ranks that have left."""
        with self._changed:
            falls = [fall for _, fall in self._falls]
        return sorted(falls, key=lambda fall: 2 if fall.has_left else fall.teller >= 0)

    def news(self, within_s: float) -> list[Fall]:
        """`falls`, if there are any within so many seconds; who ends this process for it has had time to do so."""
        with self._changed:
            self._changed.wait_for(lambda: self._falls, within_s)
            if self._falls and not all(fall.has_left for _, fall in self._falls):
                self._changed.wait_for(lambda: self.has_fallen, 2 * _GRACE_S)
        return self.falls()

    def ask(self, within_s: float) -> dict[int, Whereabouts]:
        """Where the others are, by rank, of those that answer within so many seconds. Less, if a fall is noticed."""
        with self._changed:
            self._answers.clear()
        for other in list(self._ends):
            self._send(other, {"ask": True})
        with self._changed:
            self._changed.wait_for(lambda: self._falls or len(self._answers) == self.size - 1, within_s)
            return dict(self._answers)

    def tell(self, fall: Fall) -> None:
        """Tells the others that this rank gives up, and why; once."""
        with self._changed:
            if self._has_told:
                return
            self._has_told = True
        for other in list(self._ends):
            self._send(other, {"rank": fall.rank, "why": fall.why, "late": fall.is_late})

    def close(self, why: str) -> None:
        """This rank leaves, and tells the others `why`: words to be read after "rank 1"."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
        for other in list(self._ends):
            self._send(other, {"left": why[:_PIECE]})
        self._waker.close()
        if self._listener.is_alive() and self._listener is not threading.current_thread():
            self._listener.join(1.0)
        self.forget()

    def forget(self) -> None:
        """Closes this process's ends without a word."""
        for end in [*self._ends.values(), self._waker, self._wakes]:
            end.close()

    def _send(self, other: int, record: Mapping[str, Any]) -> None:
        line = json.dumps(record).encode() + b"\n"
        with self._changed, contextlib.suppress(OSError):
            if (end := self._ends.get(other)) is not None and end.send(line, socket.MSG_DONTWAIT) < len(line):
                end.shutdown(socket.SHUT_RDWR)  # it has not read for long, and half a line would be nonsense

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._wakes, select.POLLIN)
        numbers = {end.fileno(): other for other, end in self._ends.items()}
        for number in numbers:
            poll.register(number, select.POLLIN)
        while not self._is_closed:
            for number, _ in poll.poll(self._next_ms()):
                if number in numbers and not self._hear(numbers[number]):
                    poll.unregister(number)
            self._settle()

    def _hear(self, other: int) -> bool:
        """Takes what has come from `other`; whether more may come."""
        try:
            piece = self._ends[other].recv(_PIECE)
        except OSError:
            piece = b""
        *lines, rest = (self._said[other] + piece).split(b"\n")
        self._said[other] = rest
        is_well = bool(piece) and len(rest) < _LONGEST
        for line in lines:
            is_well = is_well and self._take(other, bytes(line))
        if not is_well:
            with self._changed:
                self._ends.pop(other).close()
            if all(other not in (fall.teller, fall.rank if fall.has_left else -1) for fall in self.falls()):
                self._add(Fall(other, "has ended without a word: its process was killed or crashed"))
        return is_well

    def _take(self, other: int, line: bytes) -> bool:
        """Whether `line` is a message."""
        try:
            match json.loads(line):
                case {"ask": _}:
                    here = self._where()
                    self._send(other, {"at": here.at, "after": here.after, "since_s": here.since_s})
                case {"at": str(at), "after": str(after), "since_s": float(since_s)}:
                    with self._changed:
                        self._answers[other] = Whereabouts(at, after, since_s)
                        self._changed.notify_all()
                case {"rank": int(rank), "why": str(why), "late": bool(late)} if 0 <= rank < self.size:
                    self._add(Fall(rank, why, late, teller=other))
                case {"left": str(why)}:
                    self._add(Fall(other, why, has_left=True))
                case _:
                    return False
        except ValueError:
            return False
        return True

    def _add(self, fall: Fall) -> None:
        with self._changed:
            self._falls.append((time.monotonic(), fall))
            self._changed.notify_all()

    def _due(self) -> float | None:
        """When what has been noticed ends all waiting."""
        times = [
            noticed + (_LEAVING_S if fall.has_left else 0.0 if fall.teller >= 0 else _GRACE_S)
            for noticed, fall in self._falls
        ]
        return min(times, default=None)

    def _next_ms(self) -> float | None:
        due = None if self.has_fallen else self._due()
        return None if due is None else max(due - time.monotonic(), 0.0) * 1e3 + 1

    def _settle(self) -> None:
        due = self._due()
        if self.has_fallen or due is None or time.monotonic() < due:
            return
        with self._changed:
            self.has_fallen = True
            self._changed.notify_all()
        self._on_fall()


_open: WeakSet[Lifeline] = WeakSet()


def _forget_all() -> None:
    """A child that this process has forked would keep its connections open beyond its end."""
    for each in list(_open):
        each.forget()


if hasattr(os, "register_at_fork"):  # where processes can be forked
    os.register_at_fork(after_in_child=_forget_all)
