"""How far the pushes of a worker to one server may be ahead of the sums that come back. Pure: it is told the time.

A sum of a slice waits for the worker whose part comes last. TCP gives one worker more of the server's link than
another; if that one runs ahead, the last sums all come when the slow one has pushed, one after the other, and the way
back, which carries each sum to every worker, stands still before that and is crowded then. So who is ahead waits, and
leaves the link to the others.

But a worker that is early must not wait for one that still computes. So it waits only while sums keep coming: for a few
times as long as it mostly takes from one to the next.

What all workers send at once, into connections that were idle, is more than a link can queue; what is lost then may be
waited for as long as TCP takes to notice, 0.2 s and more, and all sums behind it with it. So the first pushes are few,
until a sum comes back, or a few of the usual times between two have passed: then the others may be computing.
"""

from __future__ import annotations

import math

__all__ = ["AHEAD_SLICES", "Lead"]

AHEAD_SLICES = 4
"""How many slices may be under way, there and back: with less, links run dry; with more, workers drift apart."""

_TIMES_AS_LONG = 4
_LEAST_S, _MOST_S = 0.02, 1.0
_FIRST_GAP_S = 0.05
_SHARE = 0.25  # of the last gap in what is taken for the usual one
_IDLE_S = 0.2  # after that, TCP begins anew


class Lead:
    """Of one worker and one server. most: bytes that were pushed, and whose sums have not come back; first: at the
    beginning, after nothing was under way. Without a link between them nothing can be lost, and `first` is `most`.

    Times are seconds of any one clock.
    """

    def __init__(self, most: int, first: int) -> None:
        self._most = self._room = most
        self._first = first
        self._pushes: dict[int, int] = {}
        self._ahead = 0
        self._answered_at = -math.inf
        self._gap_s = _FIRST_GAP_S

    def pushed(self, request: int, nbytes: int, now: float) -> None:
        """A push of `nbytes` goes out."""
        if self._first < self._most and not self._ahead and now - self._answered_at > _IDLE_S:
            self._answered_at, self._room = now, self._first
        self._pushes[request] = nbytes
        self._ahead += nbytes

    def answered(self, request: int, now: float) -> bool:
        """There is an answer to `request`; whether it was a push, and others may go on because of that."""
        nbytes = self._pushes.pop(request, None)
        if nbytes is None:
            return False
        gap_s = min(now - self._answered_at, 2 * self._gap_s)  # a longer one was no gap, but a pause of somebody
        self._gap_s += _SHARE * (gap_s - self._gap_s)
        self._answered_at = now
        waits = self._ahead > self._room
        self._ahead -= nbytes
        self._room = min(self._room + nbytes, self._most)
        return waits and self._ahead <= self._room

    def pause_s(self, now: float) -> float:
        """Seconds for which the next push is to wait, unless an answer comes before; 0 or less if it may go."""
        if self._ahead <= self._room:
            return 0.0
        return self._answered_at + min(max(_TIMES_AS_LONG * self._gap_s, _LEAST_S), _MOST_S) - now
