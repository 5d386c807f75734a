"""What a Trainer tells while it trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["EpochReport", "OnEpoch", "OnSave", "OnStep", "SaveReport", "StepReport"]


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step is done, on all ranks alike (but for the time).

    epoch and step count from 0, `steps` is how many the epoch has (None for an iterable data set), `examples` those of
    this minibatch over all devices, `loss` their mean loss before the update, `seconds` the time since the step before
    ended. steps_done: all steps of the training so far, those before it was resumed too. epochs: so many will be done
    when `fit` has done what it was asked for. lr: the learning rate of this step (that of the optimizer's first group).
    loss_scale: what the loss was multiplied by in fp16, else None. skipped: with it the gradient was not finite, so the
    parameters were left alone; the next step has half the scale.
    """

    epoch: int
    step: int
    steps: int | None
    examples: int
    loss: float
    seconds: float
    steps_done: int
    epochs: int
    lr: float
    loss_scale: float | None = None
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One epoch is done, on all ranks alike (but for the times).

    epoch counts from 0. train_loss: the mean over its examples, each before the update of its own step.
    metrics: of the validation data, empty without. seconds: of training; validate_seconds: of validation.
    steps_done, epochs: as in StepReport. lr: the learning rate at its end, which the next step has. shards_by_rank: how
    many shards of a minibatch each rank computes, at its end; empty where that is not known.
    """

    epoch: int
    examples: int
    train_loss: float
    metrics: dict[str, float]
    seconds: float
    validate_seconds: float
    steps_done: int
    epochs: int
    lr: float
    shards_by_rank: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class SaveReport:
    """A checkpoint is complete: its record is at `path`, and it is the state after `steps` steps.

    nbytes: of all tensors. copy_seconds: how long training stood still. write_seconds: how long the files took then.
    """

    path: Path
    steps: int
    nbytes: int
    copy_seconds: float
    write_seconds: float


OnStep = Callable[[StepReport], None]
OnEpoch = Callable[[EpochReport], None]
OnSave = Callable[[SaveReport], None]
