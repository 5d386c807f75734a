"""Networks to train, measure and test with. Each name stands in the table `MODELS` only.

All take (n, 1, 28, 28) float32 images and give (n, classes) scores. Initial weights come from the global torch
generator, so seed it (`torch.manual_seed`) before building one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from samegrad.errors import ConfigurationError
from samegrad.models.lenet import lenet
from samegrad.models.mlp import mlp
from samegrad.models.resnet import resnet18
from samegrad.nearest import meant

__all__ = ["MODELS", "build", "lenet", "mlp", "resnet18"]


def _mlp(classes: int) -> nn.Module:
    return mlp((784, 512, 256, classes))


MODELS: Mapping[str, Callable[[int], nn.Module]] = {"lenet": lenet, "resnet18": resnet18, "mlp": _mlp}
"""Name on the command line -> builder, which takes the number of classes."""


def build(name: str, classes: int = 10) -> nn.Module:
    """A new network of the table `MODELS`, with `classes` outputs.

    Raises `ConfigurationError` for an unknown name, with the nearest known one, and for `classes` below 1.
    """
    if name not in MODELS:
        raise ConfigurationError(f"unknown model {name!r}{meant(name, MODELS)} The known ones are: {', '.join(MODELS)}")
    return MODELS[name](classes)
