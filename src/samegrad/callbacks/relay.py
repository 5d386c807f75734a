"""From the workers to the process that launched them, so that callbacks can live there: a bar, say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from samegrad.callbacks.callback import Callback, is_first_rank
from samegrad.callbacks.reports import EpochReport, StepReport
from samegrad.callbacks.step_sums import StepSums
from samegrad.workers import report as hand_over

__all__ = ["Relay", "tell"]

_STEP_EVERY_S = 0.1


class Relay(Callback):
    """Hands what rank 0 is told to the `on_report` of the launch; of steps at most one every 0.1 s, see `StepSums`."""

    def __init__(self) -> None:
        self._sums = StepSums(_STEP_EVERY_S)

    def on_step(self, report: StepReport) -> None:
        """Hands it over, now and then."""
        summed = self._sums.add(report)
        if summed is not None and is_first_rank():
            hand_over({"event": "step", **asdict(summed)})

    def on_epoch(self, report: EpochReport) -> None:
        """Hands it over."""
        if is_first_rank():
            hand_over({"event": "epoch", **asdict(report)})


def tell(record: dict[str, Any], callbacks: Iterable[Callback]) -> None:
    """Tells `callbacks` what a `Relay` has handed over; records of other kinds are not for them."""
    fields = {name: value for name, value in record.items() if name != "event"}
    for callback in callbacks:
        match record["event"]:
            case "step":
                callback.on_step(StepReport(**fields))
            case "epoch":
                callback.on_epoch(EpochReport(**fields))
