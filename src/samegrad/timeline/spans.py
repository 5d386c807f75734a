"""What a rank does when: spans on a clock that all processes of a host share.

Code that is worth looking at says what it does,

    with span("forward", shard=3): ...

which costs next to nothing unless a `Timeline` is being recorded.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from samegrad.errors import ConfigurationError

__all__ = ["LANES", "MOST_SPANS", "Lane", "Span", "Timeline", "is_recording", "open_span", "recording", "span"]

Lane = Literal["step", "compute", "waiting", "exchange"]
LANES: tuple[Lane, ...] = ("step", "compute", "waiting", "exchange")
"""The rows of a rank. Spans of one row do not overlap, but may lie within each other."""

MOST_SPANS = 200_000
"""Of one rank; what comes later is counted, and left out."""

_NOTHING = nullcontext()


class Span(NamedTuple):
    """Times in nanoseconds. arguments: numbers and words that are shown with it."""

    name: str
    lane: Lane
    start_ns: int
    stop_ns: int
    arguments: Mapping[str, int | float | str]


@dataclass(slots=True)
class Timeline:
    """The spans of one rank in the order in which they ended; several threads may add to it.

    left_out: how many more there were than `MOST_SPANS`.
    """

    spans: list[Span] = field(default_factory=list)
    left_out: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, found: Span) -> None:
        """Notes a span, while there is room."""
        with self._lock:
            if len(self.spans) < MOST_SPANS:
                self.spans.append(found)
            else:
                self.left_out += 1

    def to_bytes(self) -> bytes:
        """As compressed JSON, for another rank."""
        return zlib.compress(json.dumps([self.left_out, self.spans]).encode(), 1)

    @classmethod
    def from_bytes(cls, record: bytes, later_ns: int = 0) -> Timeline:
        """What `to_bytes` gave, of a rank whose clock shows `later_ns` more than this one's."""
        left_out, spans = json.loads(zlib.decompress(record))
        return cls([Span(name, lane, a - later_ns, b - later_ns, more) for name, lane, a, b, more in spans], left_out)


_current: Timeline | None = None


@contextmanager
def recording(timeline: Timeline) -> Iterator[Timeline]:
    """Spans of this process, of whatever thread, go to `timeline`. Raises ConfigurationError within another one."""
    global _current
    if _current is not None:
        raise ConfigurationError("a timeline is being recorded already; end that one first")
    _current = timeline
    try:
        yield timeline
    finally:
        _current = None


def is_recording() -> bool:
    """Whether spans go anywhere."""
    return _current is not None


def span(name: str, lane: Lane = "compute", **arguments: int | float | str) -> AbstractContextManager[object]:
    """What happens within it is a span of the timeline that is being recorded, if one is."""
    return _NOTHING if _current is None else _timed(_current, name, lane, arguments)


def open_span(name: str, lane: Lane = "compute", **arguments: int | float | str) -> Callable[[], None]:
    """A span that begins now and ends when what is returned is called, the first time."""
    timeline, start_ns = _current, time.monotonic_ns()
    is_open = timeline is not None

    def close() -> None:
        nonlocal is_open
        if is_open and timeline is not None:
            timeline.add(Span(name, lane, start_ns, time.monotonic_ns(), arguments))
        is_open = False

    return close


@contextmanager
def _timed(timeline: Timeline, name: str, lane: Lane, arguments: Mapping[str, int | float | str]) -> Iterator[None]:
    start_ns = time.monotonic_ns()
    try:
        yield
    finally:
        timeline.add(Span(name, lane, start_ns, time.monotonic_ns(), arguments))
