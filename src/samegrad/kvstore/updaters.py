"""What a server does with a sum, or with a push that is applied alone: nothing but what is named in a list.

No code goes over the wire: an updater is the name of an optimizer of torch.optim and its numbers, and the same for a
learning-rate schedule. Slices begin at whole units of 4 KiB, where vectorised loops treat them as they treat the whole
value, so it does not matter over how many servers a value is cut.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import lr_scheduler

from samegrad.errors import ConfigurationError, RequestRefused
from samegrad.storing.packing import pack, unpack
from samegrad.storing.tensor_file import putting
from samegrad.summation import as_real

__all__ = ["OPTIMIZERS", "SCHEDULES", "Rule", "Updater"]

OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")
"""Those that treat every element alone, so that they may work on a slice."""

SCHEDULES = (
    *("ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "ExponentialLR", "LinearLR", "MultiStepLR"),
    *("PolynomialLR", "StepLR"),
)
"""Those that are told by numbers alone."""

_PLAIN = ("sum", "assign")
_NOT_TOLD = {"foreach", "fused", "capturable", "differentiable", "params", "optimizer", "last_epoch"}


@dataclass(frozen=True, slots=True)
class Updater:
    """What a server makes of the value of a key when a sum is complete, or in stale and async when a push comes.

    name: "sum": adds it to the value; "assign": it becomes the value; or one of OPTIMIZERS, for which it is the
        gradient.
    options: those of the optimizer, such as {"lr": 0.1, "momentum": 0.9}.
    schedule, schedule_options: one of SCHEDULES, stepped after each update of the key, and its options.

    Raises ConfigurationError for what torch does not take, or is not in the lists.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    schedule: str | None = None
    schedule_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in (*_PLAIN, *OPTIMIZERS):
            raise ConfigurationError(
                f"updater: there is no {str(self.name)[:80]!r}; there are {', '.join((*_PLAIN, *OPTIMIZERS))}"
            )
        if self.schedule is not None and self.schedule not in SCHEDULES:
            raise ConfigurationError(
                f"updater: there is no schedule {str(self.schedule)[:80]!r}; there are {', '.join(SCHEDULES)}"
            )
        if self.name in _PLAIN and (self.options or self.schedule is not None):
            raise ConfigurationError(f"updater: {self.name} takes no options and no schedule")
        if self.schedule is None and self.schedule_options:
            raise ConfigurationError("updater: schedule_options without a schedule")
        self._check_told(self.name, self.options, None if self.name in _PLAIN else getattr(torch.optim, self.name))
        self._check_told(
            str(self.schedule), self.schedule_options, self.schedule and getattr(lr_scheduler, self.schedule)
        )
        self.rule(torch.zeros(1))

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer) -> Updater:
        """What does the same on servers as `optimizer`, with all its options. Raises ConfigurationError for one that is
        not in OPTIMIZERS, or has several groups of parameters."""
        kind = type(optimizer)
        if kind.__name__ not in OPTIMIZERS or kind is not getattr(torch.optim, kind.__name__):
            raise ConfigurationError(
                f"updater: servers cannot do what {kind.__module__}.{kind.__qualname__} does; they know "
                f"{', '.join(OPTIMIZERS)} of torch.optim"
            )
        if len(optimizer.param_groups) != 1:
            raise ConfigurationError(
                f"updater: servers update all keys alike; the optimizer has {len(optimizer.param_groups)} groups of "
                f"parameters. Give it one"
            )
        told = set(inspect.signature(kind).parameters) - _NOT_TOLD
        group = optimizer.param_groups[0]
        options = {name: list(value) if isinstance(value, tuple) else value for name, value in group.items()}
        return cls(kind.__name__, {name: value for name, value in options.items() if name in told})

    def spelled_out(self) -> Updater:
        """The same, with every option of its optimizer."""
        optimizer = self.rule(torch.zeros(1)).optimizer
        if optimizer is None or self.schedule is not None:
            return self
        return Updater.of(optimizer)

    def _check_told(self, name: str, options: Mapping[str, Any], maker: Any) -> None:
        known = set(inspect.signature(maker).parameters) - _NOT_TOLD if maker else set()
        wrong = sorted(set(options) - known)
        if wrong:
            raise ConfigurationError(f"updater: {name} takes no {wrong[0]}; it takes {', '.join(sorted(known))}")
        for option, value in options.items():
            numbers = value if isinstance(value, list | tuple) else [value]
            if len(numbers) > 1000 or not all(each is None or isinstance(each, bool | int | float) for each in numbers):
                raise ConfigurationError(f"updater: {option} must be a number or numbers; got {str(value)[:80]!r}")

    def rule(self, value: Tensor) -> Rule:
        """The updater at work on `value`, a flat tensor."""
        return Rule(self, value)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        record = {
            "name": self.name,
            "options": dict(self.options),
            "schedule": self.schedule,
            "schedule_options": dict(self.schedule_options),
        }
        plain: dict[str, Any] = json.loads(json.dumps(record))
        return plain

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Updater:
        """The inverse of `to_json`. Raises ConfigurationError."""
        try:
            return cls(**record)
        except (TypeError, AttributeError) as error:
            raise ConfigurationError(f"updater: {str(error)[:200]}") from None


class Rule:
    """An updater with the state that it keeps for one slice. value: the slice, which `apply` changes in place.

    optimizer: that of torch, if it is one.
    """

    def __init__(self, updater: Updater, value: Tensor) -> None:
        self._name = updater.name
        self._parameter = value
        self.optimizer: torch.optim.Optimizer | None = None
        self._schedule: lr_scheduler.LRScheduler | None = None
        if updater.name in _PLAIN:
            return
        try:
            with warnings.catch_warnings(action="ignore"):
                self.optimizer = self._make(getattr(torch.optim, updater.name), updater.options)
                if updater.schedule is not None:
                    schedule = getattr(lr_scheduler, updater.schedule)
                    self._schedule = schedule(self.optimizer, **_as_tuples(updater.schedule_options))
        except (TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
            raise ConfigurationError(f"updater: {updater.name} of torch refuses its options: {error}") from error

    def _make(self, maker: Any, options: Mapping[str, Any]) -> torch.optim.Optimizer:
        one_by_one = {"foreach": False} if "foreach" in inspect.signature(maker).parameters else {}
        made: torch.optim.Optimizer = maker([self._parameter], **_as_tuples(options), **one_by_one)
        return made

    @property
    def value(self) -> Tensor:
        """The slice as it is now."""
        return self._parameter

    def move_to(self, value: Tensor) -> None:
        """From now on `value`, a copy of the slice, is the slice."""
        if self.optimizer is not None:
            held = self.optimizer.state.pop(self._parameter, None)
            self.optimizer.param_groups[0]["params"] = [value]
            if held is not None:
                self.optimizer.state[value] = held
        self._parameter = value

    def described(self) -> tuple[Any, dict[str, Tensor]]:
        """What it knows besides the value, packed as JSON, and the tensors in that, by name."""
        tensors: dict[str, Tensor] = {}
        if self.optimizer is None:
            return None, tensors
        (group,) = self.optimizer.param_groups
        state = {
            "state": dict(self.optimizer.state.get(self._parameter, {})),
            "group": {name: value for name, value in group.items() if name != "params"},
            "schedule": None if self._schedule is None else self._schedule.state_dict(),
        }
        return pack(state, "updater", putting(tensors)), tensors

    def restore(self, record: Any, tensors: Mapping[str, Tensor]) -> None:
        """Knows again what `described` gave, of the same updater. Raises RequestRefused for anything else."""
        known = unpack(self.described()[0], str)
        try:
            state = unpack(record, tensors.__getitem__)
            is_same = (known is None) == (state is None)
            if known is not None and is_same:
                parts = [(known, state), (known["group"], state["group"])]
                if self._schedule is not None:
                    parts.append((known["schedule"], state["schedule"]))
                is_same = all(set(ours) == set(theirs) for ours, theirs in parts) and isinstance(state["state"], dict)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise RequestRefused(f"updater: what is to be taken up cannot be read: {error!r:.200}") from None
        if not is_same:
            raise RequestRefused(f"updater: expected the state of {self._name} as this torch has it; got another one")
        if self.optimizer is None:
            return
        self.optimizer.param_groups[0].update(state["group"])
        self.optimizer.state[self._parameter] = state["state"]
        if self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"])

    def apply(self, total: Tensor) -> None:
        """Makes the new value of the old one and `total`."""
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            if self.optimizer is None:
                target, source = as_real(self._parameter), as_real(total)
                if self._name == "sum":
                    target.add_(source)
                else:
                    target.copy_(source)
                return
            self._parameter.grad = total
            self.optimizer.step()
            self._parameter.grad = None
            if self._schedule is not None:
                self._schedule.step()


def _as_tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
