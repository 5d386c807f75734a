"""How long a rank waits for the others: longer where steps take long, so that none is given up that is only slow."""

from __future__ import annotations

import time

__all__ = ["LEAST_S", "Patience"]

LEAST_S = 300.0
"""Seconds; some ranks may do what others do not: draw, write, look at results."""

_TIMES_AS_SLOW = 50


class Patience:
    """The deadline of a wait: `timeout_s`, if given; else `LEAST_S`, or 50 times the longest time that this rank has
    been busy between two exchanges so far, if that is longer."""

    __slots__ = ("_busy_since", "_longest_s", "_timeout_s")

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._busy_since: float | None = None  # not known before the first wait: what is before that is the start
        self._longest_s = 0.0

    def arrived(self) -> None:
        """This rank has come to an exchange."""
        if self._busy_since is not None:
            busy_s = time.monotonic() - self._busy_since
            if busy_s > self._longest_s:
                self._longest_s = busy_s
            self._busy_since = None

    def waited(self) -> None:
        """All have come, and this rank goes on."""
        self._busy_since = time.monotonic()

    @property
    def seconds(self) -> float:
        """The deadline now."""
        return max(LEAST_S, _TIMES_AS_SLOW * self._longest_s) if self._timeout_s is None else self._timeout_s
