"""A model whose loss is finite and whose gradient is not, where an example says so."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Spoilable", "batches"]

_SPOILT = 99.0  # in the inputs: the gradient of this example is infinite


class Spoil(torch.autograd.Function):
    """Hands outputs on, and makes their gradients infinite or NaN where it is told to."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return output.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (rows,) = ctx.saved_tensors
        return torch.where(rows, gradient * math.inf, gradient), None


class Spoilable(nn.Module):
    """Two layers; an example that begins with 99 has a finite loss, but no finite gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        spoilt = (x[:, :1] == _SPOILT).expand(-1, 8)
        hidden: Tensor = Spoil.apply(self.first(x), spoilt)  # type: ignore[no-untyped-call]
        scores: Tensor = self.second(hidden.tanh())
        return scores


def batches(count: int, spoilt_step: int | None = None, spoilt_row: int = 13) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    X = torch.randn(count, 16, 4, generator=generator)
    y = torch.randint(3, (count, 16), generator=generator)
    if spoilt_step is not None:
        X[spoilt_step, spoilt_row, 0] = _SPOILT
    return list(zip(X, y, strict=True))
