"""Waiting for what torch does over Gloo, in a way that can be given up.

Gloo reports the end of a connection to who waits for a message that has not begun. One that is under way, half sent or
half received, it forgets: who waits for it is told nothing until the deadline. So nobody who must not be stuck waits
there. Collectives are waited for in slices of time. For sends and receives that will not do, since the end of a slice
closes all connections of the group: a thread waits for those, and the caller waits for the thread. That costs some
20 us, so short messages, which are written and read in one piece, are waited for by the caller.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

__all__ = ["Waits"]

_SLICE_S = 0.25
_SLICE = timedelta(seconds=_SLICE_S)
_SLICES = 2  # in vain before a wait is given up: until then it may fail by itself


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of a rank in its groups.

    is_vain: whether nothing will come any more. on_left: called where a wait is given up and a thread of torch is left
    in it.
    """

    is_vain: Callable[[], bool]
    on_left: Callable[[], None]
    _idle: list[_Helper] = field(default_factory=list)

    def collective(self, work: Any) -> None:
        """Waits for `work` (of torch.distributed) of a collective. Raises RuntimeError if it fails or is given up."""
        vain = 0
        while vain < _SLICES:
            try:
                work.wait(_SLICE)
                return
            except RuntimeError:
                if work.is_completed():  # it has failed
                    raise
            vain += self.is_vain()
        self._give_up()

    def messages(self, works: Sequence[Any]) -> None:
        """Waits for `works`, sends and receives. Raises RuntimeError if one fails or is given up."""
        helper = self._idle.pop() if self._idle else _Helper()
        vain = 0
        helper.begin(works)
        while not helper.is_done(_SLICE_S):
            vain += self.is_vain()
            if vain == _SLICES:
                self._give_up()
        failure = helper.failure
        self._idle.append(helper)
        if failure is not None:
            raise failure

    def _give_up(self) -> None:
        self.on_left()
        raise RuntimeError("given up in the middle of a message")


class _Helper:
    """A thread that waits for one thing after the other."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._works: Sequence[Any] = ()
        self._has_begun, self._is_done = threading.Lock(), threading.Lock()
        self._has_begun.acquire()
        self._is_done.acquire()
        threading.Thread(target=self._run, name="waits for Gloo", daemon=True).start()

    def begin(self, works: Sequence[Any]) -> None:
        """Starts to wait for `works`."""
        self._works = works
        self._has_begun.release()

    def is_done(self, within_s: float) -> bool:
        """Whether that is over within so many seconds; to be asked until it is."""
        return self._is_done.acquire(timeout=within_s)

    def _run(self) -> None:
        while True:
            self._has_begun.acquire()
            self.failure = None
            try:
                for work in self._works:
                    work.wait()
            except BaseException as failure:
                self.failure = failure
            self._works = ()
            self._is_done.release()
