"""Gradual warm-up: the first steps are shorter than those that follow.

At first the loss changes faster than a large learning rate bears. So the rate begins at that for a small batch and
grows by the same amount after every step. (Goyal et al. 2017, section 2.2, "gradual warmup": from the base rate to the
scaled one, over 5 epochs of ImageNet.)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from samegrad.errors import ConfigurationError

__all__ = ["warmup"]


def warmup(optimizer: Optimizer, steps: int, start_factor: float) -> LambdaLR:
    """A scheduler of `optimizer` under which its learning rates grow over `steps` steps to what they are now.

    steps: how many steps there are before the first one with the full rate; 0 for none.
    start_factor: the rate of the first step, as a part of the full one; in (0, 1]. After a learning rate has been
        scaled, base rate / scaled rate begins at the base rate.

    Afterwards the rates stay what they are. Another scheduler may follow: as the second one of
    `torch.optim.lr_scheduler.SequentialLR`. Raises ConfigurationError for other arguments.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise ConfigurationError(f"warmup: steps must be a whole number of at least 0; got {steps!r}")
    is_number = isinstance(start_factor, int | float) and not isinstance(start_factor, bool)
    if not is_number or not 0 < start_factor <= 1:
        raise ConfigurationError(
            f"warmup: start_factor must be above 0 and at most 1, since it is a part of the full rate; got "
            f"{start_factor!r}"
        )
    return LambdaLR(optimizer, _Growing(steps, start_factor))


@dataclass(frozen=True)
class _Growing:
    """Step -> factor of the full rate; an object, so that its settings are part of the scheduler's state."""

    steps: int
    start_factor: float

    def __call__(self, step: int) -> float:
        # In closed form, so that the full rate is reached to the last bit.
        return 1.0 if step >= self.steps else self.start_factor + (1 - self.start_factor) * (step / self.steps)
