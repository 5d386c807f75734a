"""A LeNet-like network for 28x28 images with one channel.

    input      (n,  1, 28, 28)
    conv1 3x3  (n, 20, 26, 26)   ReLU   average pool 2x2 -> (n, 20, 13, 13)
    conv2 5x5  (n, 50,  9,  9)   ReLU   average pool 2x2 -> (n, 50,  4,  4)
    flatten    (n, 800)
    linear1    (n, 128)          ReLU
    linear2    (n, classes)

Average pooling drops a last odd row and column (9 -> 4).
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from samegrad.errors import ConfigurationError
from samegrad.models.weights import normal_weights

__all__ = ["lenet"]


def lenet(classes: int = 10) -> nn.Sequential:
    """A new network: (n, 1, 28, 28) float32 -> (n, classes) scores, not normalised.

    Weights are drawn from N(0, 0.01^2) with the global torch generator, biases are zero. The eight parameters are
    `conv1`, `conv2`, `linear1` and `linear2`, each with `.weight` and `.bias`, in this order.
    Raises `ConfigurationError` if `classes` is below 1.
    """
    if classes < 1:
        raise ConfigurationError(f"lenet: classes must be 1 or more, got {classes}")
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(1, 20, kernel_size=3),
        relu1=nn.ReLU(),
        pool1=nn.AvgPool2d(2),
        conv2=nn.Conv2d(20, 50, kernel_size=5),
        relu2=nn.ReLU(),
        pool2=nn.AvgPool2d(2),
        flatten=nn.Flatten(),
        linear1=nn.Linear(800, 128),
        relu3=nn.ReLU(),
        linear2=nn.Linear(128, classes),
    )
    model = nn.Sequential(layers)
    normal_weights(model, std=0.01)
    return model
