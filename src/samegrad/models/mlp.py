"""A multilayer perceptron: linear layers with ReLU and dropout between them.

flatten -> linear1 -> ReLU -> dropout -> linear2 -> ReLU -> dropout -> ... -> the last linear layer
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from samegrad.errors import ConfigurationError

__all__ = ["mlp"]


def mlp(sizes: Sequence[int] = (784, 512, 256, 10), dropout: float = 0.2) -> nn.Sequential:
    """A new network: (n, ...) float32 with `sizes[0]` values per example -> (n, sizes[-1]) scores, not normalised.

    Images are flattened, so the default takes (n, 1, 28, 28) as well as (n, 784). Each hidden activation is dropped
    with probability `dropout` in training mode; at 0 there are no dropout layers. Weights and biases have PyTorch's
    default initialisation, drawn from the global torch generator. The parameters are `linear1.weight`, `linear1.bias`,
    `linear2.weight` and so on.
    Raises `ConfigurationError` for fewer than two sizes, a size below 1, or `dropout` outside [0, 1).
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ConfigurationError(f"mlp: sizes must be two or more positive numbers, inputs first, got {tuple(sizes)}")
    if not 0 <= dropout < 1:
        raise ConfigurationError(f"mlp: dropout must be in [0, 1), got {dropout}")
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    last = len(sizes) - 1
    for i in range(1, last + 1):
        layers[f"linear{i}"] = nn.Linear(sizes[i - 1], sizes[i])
        if i < last:
            layers[f"relu{i}"] = nn.ReLU()
            if dropout > 0:
                layers[f"dropout{i}"] = nn.Dropout(dropout)
    return nn.Sequential(layers)
