"""The learning rate scheduler of a Trainer: made, checked, compared over ranks, and named in checkpoints.

When it steps is said in `samegrad.trainer.step`: once after each step in which the optimizer has updated parameters.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from samegrad.errors import ConfigurationError
from samegrad.storing.packing import pack

__all__ = ["MakeScheduler", "kind_of", "make_scheduler", "scheduler_entries"]

MakeScheduler = Callable[[torch.optim.Optimizer], LRScheduler]
"""Takes the optimizer of the Trainer, returns a scheduler of it."""

_EXAMPLE = "lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)"


def make_scheduler(maker: MakeScheduler | None, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
    """The scheduler of `optimizer` that `maker` makes, None without a maker. Raises ConfigurationError for others."""
    if maker is None:
        return None
    expected = (
        f"scheduler must be a function that takes the optimizer and returns a scheduler of it, such as {_EXAMPLE}"
    )
    if isinstance(maker, LRScheduler) or not callable(maker):
        raise ConfigurationError(f"{expected}; got {type(maker).__name__}")
    scheduler: object = maker(optimizer)
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigurationError(
            "ReduceLROnPlateau needs a metric, so it cannot be stepped after each step. Make it yourself, give it to "
            "trainer.remember, and call its step(metric) in on_epoch, alike on all ranks"
        )
    if not isinstance(scheduler, LRScheduler):
        raise ConfigurationError(f"{expected}; it returned {type(scheduler).__name__}")
    if scheduler.optimizer is not optimizer:
        raise ConfigurationError(f"{expected}; it returned a {type(scheduler).__name__} of another optimizer")
    return scheduler


def kind_of(scheduler: LRScheduler) -> str:
    """Under which name a checkpoint holds `scheduler`, so that one of another kind is refused: with those inside it."""
    inner = [kind_of(part).removeprefix("scheduler ") for part in getattr(scheduler, "_schedulers", ())]
    return f"scheduler {type(scheduler).__qualname__}" + (f"({', '.join(inner)})" if inner else "")


def scheduler_entries(scheduler: LRScheduler | None) -> list[str]:
    """What must be the same on every rank: the kind of scheduler and its settings."""
    if scheduler is None:
        return []

    def describe(_: str, value: object) -> str:
        return repr(value.tolist()) if isinstance(value, Tensor) else type(value).__qualname__

    settings = {name: pack(value, name, describe) for name, value in scheduler.state_dict().items()}
    return [kind_of(scheduler), *(f"{name} {json.dumps(value)}" for name, value in settings.items())]
