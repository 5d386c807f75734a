"""Ctrl-C and SIGTERM during a run: the first has it saved and ended, the second (or the first, where nothing is saved)
ends it at once."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any

from samegrad.workers import StopSwitch

__all__ = ["StoppedBySignal"]

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_ANSWER = b"stopping after the next step, and saving; once more to end at once, without\n"


class StoppedBySignal:
    """Within, the first signal sets the switch, the second raises KeyboardInterrupt; the first too if not `saves`.

    exit_code: 128 and the number of the signal that came first; that of Ctrl-C if none has come.
    answers: whether the user is told so; where every rank gets the signal, one of them is enough.
    """

    def __init__(self, saves: bool, answers: bool = True) -> None:
        self._answers = answers
        self.exit_code = 128 + signal.SIGINT
        self._saves, self._asked = saves, False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSwitch:
        self._switch = StopSwitch()
        self._before = {number: signal.signal(number, self._take) for number in _NUMBERS}
        return self._switch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # One that was not installed from Python is None, and cannot be put back from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._switch.__exit__()

    def _take(self, number: int, _: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        self.exit_code = 128 + number
        if not self._saves:
            raise KeyboardInterrupt
        self._switch.set()
        if self._answers:
            os.write(2, _ANSWER)  # print might be at work in what was interrupted
