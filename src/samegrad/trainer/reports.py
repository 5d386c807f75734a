"""What a Trainer tells while it trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["EpochReport", "OnEpoch", "OnStep", "StepReport"]


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step is done, on all ranks alike (but for the time).

    epoch and step count from 0, `steps` is how many the epoch has, `examples` those of this minibatch over all devices,
    `loss` their mean loss before the update, `seconds` the time since the step before ended.
    """

    epoch: int
    step: int
    steps: int
    examples: int
    loss: float
    seconds: float


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One epoch is done, on all ranks alike (but for the times).

    epoch counts from 0. train_loss: the mean over its examples, each before the update of its own step.
    metrics: of the validation data, empty without. seconds: of training; validate_seconds: of validation.
    """

    epoch: int
    examples: int
    train_loss: float
    metrics: dict[str, float]
    seconds: float
    validate_seconds: float


OnStep = Callable[[StepReport], None]
OnEpoch = Callable[[EpochReport], None]
