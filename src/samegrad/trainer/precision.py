"""The number format that a recipe computes in: autocast, and the scaling of the loss that fp16 needs.

Parameters, gradients and their sums stay in float32 (or what the model has); autocast casts where an operation is safe
and faster in the short format. What is cast depends on the operations alone, never on the rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from samegrad.errors import TrainingError
from samegrad.executors import Group
from samegrad.recipe import Recipe

__all__ = ["LossScaler", "in_precision"]

_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

_FIRST_SCALE = 2.0**16
_LEAST_SCALE = 2.0**-16
_GROWS_AFTER = 2000  # good steps in a row


def in_precision(function: Callable[..., Any], recipe: Recipe, device: torch.device) -> Callable[..., Any]:
    """`function`, computed in the recipe's precision on `device`; to be called `as_recipe_says`."""
    dtype = _DTYPES[recipe.precision]
    if dtype is None:
        return function

    def computed(*arguments: Any) -> Any:
        try:
            with torch.autocast(device.type, dtype=dtype):
                return function(*arguments)
        finally:  # within an autocast of the caller, torch would keep the weights that it cast: stale after the step
            torch.clear_autocast_cache()

    return computed


class LossScaler:
    """The factor `scale` of the loss in fp16, without which small gradients would be zero there.

    The gradient is divided by it again before it is used. A scale that is too large makes the gradient infinite or NaN:
    then the step is left out and the scale halved. After 2000 good steps in a row it is doubled. As it is a power of
    two, scaling changes no bit of a float32 gradient (unless that is below 1e-38).

    Whether the gradient is finite is decided on the sum over all shards, which is the same on every rank; so the scale
    is, too. It is part of a checkpoint.
    """

    def __init__(self) -> None:
        self.scale = _FIRST_SCALE
        self._good_steps = 0

    def unscale(self, parameters: Sequence[Tensor], group: Group, is_shared: bool) -> bool:
        """Divides the gradients of `parameters` by the scale and sets the scale for the next step.

        Returns whether they are finite, on all ranks alike; if not, they are not to be used. is_shared: each rank has
        the gradients of some parameters only. Raises TrainingError if they are not however small the scale is.
        """
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        is_finite = _are_finite(gradients)
        if is_shared:
            is_finite = all(record == b"\1" for record in group.gather(bytes([is_finite]), "scaling the loss"))
        if is_finite and gradients:
            with torch.no_grad():
                torch._foreach_mul_(gradients, 1.0 / self.scale)
        self._update(is_finite)
        return is_finite

    def _update(self, is_finite: bool) -> None:
        if is_finite:
            self._good_steps += 1
            if self._good_steps == _GROWS_AFTER:
                self.scale, self._good_steps = 2.0 * self.scale, 0
            return
        if self.scale <= _LEAST_SCALE:
            raise TrainingError(
                f"the gradient is infinite or NaN even with a loss scale of {self.scale:g}, although the loss is "
                f"finite. It does not fit into fp16, or the backward divides by zero (sqrt and norm at 0 do): try "
                f"precision bf16 or fp32 (--precision)"
            )
        self.scale, self._good_steps = 0.5 * self.scale, 0

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"scale": self.scale, "good_steps": self._good_steps}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Takes up what `state_dict` gave."""
        self.scale, self._good_steps = state["scale"], state["good_steps"]


def _are_finite(gradients: Sequence[Tensor]) -> bool:
    """Whether all elements are; by their largest absolute values, which a NaN makes NaN."""
    filled = [gradient for gradient in gradients if gradient.numel()]
    with torch.no_grad():
        return all(math.isfinite(float(norm)) for norm in torch._foreach_norm(filled, math.inf)) if filled else True
