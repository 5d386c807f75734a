"""What the learning rate becomes when the batch is larger than the one it was found for. Pure: no torch.

    linear   batch_size / base_batch_size        Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet
                                                 in 1 Hour": k times the batch takes k times fewer steps, so each is
                                                 made k times as long
    sqrt     its square root                     Krizhevsky 2014, "One weird trick for parallelizing convolutional
                                                 neural networks": keeps the variance of an update what it was

The batch is the global one. The number of devices is not in the factor: how a batch is shared out does not change what
a step should do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

from samegrad.errors import ConfigurationError

__all__ = ["RATE_RULES", "RateRule", "rate_factor", "scaled_rate", "warmup_steps"]

RateRule = Literal["none", "linear", "sqrt"]

RATE_RULES: Mapping[RateRule, Callable[[float], float]] = {
    "none": lambda ratio: 1.0,
    "linear": lambda ratio: ratio,
    "sqrt": math.sqrt,
}
"""Rule -> function of batch_size / base_batch_size that gives the factor of the learning rate."""


def scaled_rate(lr: float, batch_size: int, base_batch_size: int = 256, rule: RateRule = "linear") -> float:
    """The learning rate for minibatches of `batch_size`, where `lr` suits those of `base_batch_size`.

    batch_size, base_batch_size: examples of the global minibatch, over all devices. rule: "linear", "sqrt" or "none".
    Raises ConfigurationError for anything else than positive numbers and a known rule.
    """
    if isinstance(lr, bool) or not isinstance(lr, int | float) or not 0 < lr < math.inf:
        raise ConfigurationError(f"scaled_rate: lr must be a positive number; got {lr!r}")
    return lr * rate_factor(batch_size, base_batch_size, rule)


def rate_factor(batch_size: int, base_batch_size: int, rule: RateRule) -> float:
    """What `scaled_rate` multiplies the rate by."""
    for name, value in (("batch_size", batch_size), ("base_batch_size", base_batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(f"scaled_rate: {name} must be a whole number of at least 1; got {value!r}")
    if rule not in RATE_RULES:
        raise ConfigurationError(f"scaled_rate: rule must be one of {', '.join(RATE_RULES)}; got {rule!r}")
    return RATE_RULES[rule](batch_size / base_batch_size)


def warmup_steps(epochs: float, steps_per_epoch: int) -> int:
    """The steps of a warm-up over `epochs` epochs, which may be a fraction: at least one, unless it is 0."""
    return max(1, round(epochs * steps_per_epoch)) if epochs > 0 else 0
