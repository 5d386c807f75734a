"""How far training in workers is, told to the process that launched them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from samegrad.workers import report

__all__ = ["teller"]

_REPORT_EVERY_S = 0.1


def teller(what: str, place: int, epochs: int, jobs: int, first: int = 0) -> Callable[[Any], None]:
    """An `on_step` for job number `place` of `jobs`, which is called `what` and goes from epoch `first` on: tells how
    far all are, not too often."""
    told_at = -math.inf

    def tell(step: Any) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _REPORT_EVERY_S:
            told_at = time.monotonic()
            done = (step.epoch - first + (step.step + 1) / step.steps) / epochs
            report({"what": what, "done": (place + done) / jobs})

    return tell
