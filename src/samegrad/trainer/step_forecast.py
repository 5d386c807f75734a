"""How long a step of this training will take, predicted before the first one.

Computing and updating are measured, on one minibatch and on parameters like those of the model; the exchange is
predicted from the rates of the memory. A step is the three after each other, on the rank that needs longest.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from samegrad.callbacks.callback import Callback
from samegrad.callbacks.reports import StepReport
from samegrad.trainer.choosing import exchange_seconds
from samegrad.trainer.shard_cost import ShardCost
from samegrad.trainer.trainer import Trainer

__all__ = ["StepForecast", "StepTimes", "forecast_step"]

_UPDATES = 4
_OPERATION = "predicting the time of a step"


@dataclass(frozen=True, slots=True)
class StepForecast:
    """Seconds of a step and its parts on the slowest rank; None where a part could not be measured or predicted."""

    computing_s: float | None
    exchange_s: float | None
    update_s: float | None

    @property
    def step_s(self) -> float | None:
        """All of it."""
        if self.computing_s is None or self.exchange_s is None or self.update_s is None:
            return None
        return self.computing_s + self.exchange_s + self.update_s

    def to_json(self) -> dict[str, Any]:
        """As JSON values, in the names of a report."""
        return {
            "predicted_step_seconds": self.step_s,
            "predicted_computing_seconds": self.computing_s,
            "predicted_exchange_seconds": self.exchange_s,
            "predicted_update_seconds": self.update_s,
        }


def forecast_step(
    trainer: Trainer,
    cost: ShardCost | None,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
) -> StepForecast:
    """The forecast for `trainer`; all ranks call it alike.

    cost: what this rank's shards take. optimizer: makes another optimizer of the trainer's kind.
    """
    group = trainer.world.group
    own = {"computing": cost and cost.seconds, "update": _update_seconds(trainer, optimizer)}
    records = [json.loads(record) for record in group.gather(json.dumps(own).encode(), _OPERATION)]
    computing = [record["computing"] for record in records]
    exchange = trainer.choice.exchange_s
    if exchange is None:
        exchange = exchange_seconds(trainer.summing, trainer.strategy_used)
    return StepForecast(
        None if None in computing else max(computing), exchange, max(record["update"] for record in records)
    )


def _update_seconds(trainer: Trainer, optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]) -> float:
    """Seconds in which this rank updates what it updates: of parameters of the same sizes, made for this."""
    parameters = list(trainer.model.parameters())
    if trainer.owned_by is not None:
        parameters = [parameters[place] for place in trainer.owned_by[trainer.world.rank]]
    copies = [nn.Parameter(torch.zeros_like(each), each.requires_grad) for each in parameters]
    if not any(each.requires_grad for each in copies):
        return 0.0
    made = optimizer(copies)
    for each in copies:
        each.grad = torch.zeros_like(each) if each.requires_grad else None
    times = []
    for _ in range(_UPDATES):
        start = time.perf_counter()
        made.step()
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])  # the first makes the optimizer's state


class StepTimes(Callback):
    """Collects how long steps take."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def on_step(self, report: StepReport) -> None:
        """One more."""
        self._seconds.append(report.seconds)

    @property
    def median_s(self) -> float | None:
        """The median of all, in seconds; None without any."""
        return statistics.median(self._seconds) if self._seconds else None
