"""A model whose gradients are real and whose computing is played: it takes time, as on a device, and no core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

__all__ = ["Pass", "PlayedLayers"]

Pass = Literal["forward", "backward"]


class PlayedLayers(nn.Module):
    """`layers` weights of `numel` float32 each; takes and returns tensors of any shape.

    work: called for each layer in each pass, where the layer would be computed; it sleeps, say. In backward that is
    before the weight gets its gradient, which computing it would be part of; the last layer has its gradient first.
    """

    def __init__(self, layers: int, numel: int, work: Callable[[Pass], object]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(numel, work) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """`x`, and the sum of all weights."""
        for layer in self.layers:
            x = layer(x)
        return x


class _Layer(nn.Module):
    def __init__(self, numel: int, work: Callable[[Pass], object]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numel))
        self._work = work

    def forward(self, x: Tensor) -> Tensor:
        worked: Tensor = _Work.apply(x + self.weight.sum(), self._work)  # type: ignore[no-untyped-call]
        return worked


class _Work(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, work: Callable[[Pass], object]) -> Tensor:
        work("forward")
        context.work = work
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        context.work("backward")
        return gradients[0], None
