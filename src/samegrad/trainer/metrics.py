"""Metrics are sums over examples, so that devices can add them up and each example counts exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from samegrad.errors import ConfigurationError

__all__ = ["Metric", "accuracy", "suits_accuracy"]

Metric = Callable[[Any, Any], "Tensor | float"]
"""Takes outputs and targets of some examples; returns the sum over them (not the mean), one number."""


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """How many rows of `output` (n, classes, ...) are largest at `target` (n, ...): a count, as metrics are sums."""
    if not suits_accuracy(output, target):
        raise ConfigurationError(
            "accuracy needs scores (n, classes) and integer targets (n); give evaluate or fit metrics of your own: "
            "metrics={'name': function of (output, target) that returns a sum}"
        )
    return (output.argmax(dim=1) == target).sum()


def suits_accuracy(output: object, target: object) -> bool:
    """Whether `output` and `target` are scores of classes and the right classes, one of each per example."""
    return (
        isinstance(output, Tensor)
        and isinstance(target, Tensor)
        and not target.is_floating_point()
        and target.dtype is not torch.bool
        and output.dim() == 2
        and target.shape == output.shape[:1]
    )
