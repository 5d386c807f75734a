"""Initial weights drawn from one narrow normal distribution, for the networks that are trained from scratch here.

Numbers come from the global torch generator, in the order of `model.modules()`: `torch.manual_seed` before building a
network fixes its weights, whatever devices it is trained on later.
"""

from __future__ import annotations

from torch import nn

from samegrad.errors import ConfigurationError

__all__ = ["normal_weights"]


def normal_weights(model: nn.Module, std: float = 0.01) -> None:
    """Draw the weight of every `Linear` and `Conv2d` in `model` from N(0, std^2), in place; set their biases to zero.

    Other layers, batch normalisation among them, stay as they are. Raises `ConfigurationError` for a negative `std`.
    """
    if not std >= 0:  # also refuses NaN
        raise ConfigurationError(f"normal_weights: the standard deviation must be 0 or more, got {std}")
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
