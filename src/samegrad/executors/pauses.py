"""How a rank waits for what another process writes to memory: it looks again at once, then gives the core away between
two looks, then sleeps, for longer and longer."""

from __future__ import annotations

import os
import time

from samegrad.machine import usable_cores

__all__ = ["Pauses", "spinning_s"]

_SPIN_S, _YIELD_S = 200e-6, 5e-3
_SHORTEST_S, _LONGEST_S = 50e-6, 1e-3


def spinning_s(ranks: int) -> float:
    """For how many seconds each of so many ranks may keep a core busy: not at all, if there are fewer cores."""
    return _SPIN_S if ranks <= usable_cores() else 0.0


class Pauses:
    """Those of one wait, which begins now. spin_s: for how long there are none."""

    __slots__ = ("_nap_s", "_spin_s", "_start")

    def __init__(self, spin_s: float) -> None:
        self._start, self._spin_s, self._nap_s = time.monotonic(), spin_s, _SHORTEST_S

    def waited(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._start

    def pause(self, waited: float) -> None:
        """The next one, `waited` seconds after the beginning."""
        if waited > _YIELD_S:
            self._nap_s = min(self._nap_s * 1.2, _LONGEST_S)
            time.sleep(self._nap_s)
        elif waited > self._spin_s:
            os.sched_yield()
