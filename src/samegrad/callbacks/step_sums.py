"""Steps put together, for whoever wants to hear of them less often than they are made."""

from __future__ import annotations

import time
from dataclasses import replace

from samegrad.callbacks.reports import StepReport

__all__ = ["StepSums"]


class StepSums:
    """Passes the first step on, the last one of each epoch, and otherwise one every `every_s` seconds at most."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._passed_at = float("-inf")
        self._examples, self._seconds = 0, 0.0  # since then

    def add(self, report: StepReport) -> StepReport | None:
        """`report` with the examples and seconds of all steps since the one passed on before; None: not now."""
        self._examples += report.examples
        self._seconds += report.seconds
        now = time.monotonic()
        if now - self._passed_at < self._every_s and report.step + 1 != report.steps:
            return None
        report = replace(report, examples=self._examples, seconds=self._seconds)
        self._passed_at, self._examples, self._seconds = now, 0, 0.0
        return report
