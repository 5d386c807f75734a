"""The memory that `.grad` shows after an exchange: of this rank alone, and used again only when nobody looks at it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from samegrad.parallel.layout import FlatLayout

__all__ = ["PrivateGradients", "are_unshared"]

_REFERENCES = sum(map(sys.getrefcount, [object()]))  # of what only a list holds, while it is asked in this way


class PrivateGradients:
    """Flat buffers of `layout` on `device`, as one tensor for each parameter.

    Code of the user may keep what was in `.grad` (for statistics, or to accumulate into it): then the next gradients
    get other memory.
    """

    def __init__(self, layout: FlatLayout, device: torch.device) -> None:
        self._layout, self._device = layout, device
        self._flats: list[Tensor] = []
        self._views: list[Tensor] = []

    def room(self) -> tuple[list[Tensor], list[Tensor]]:
        """The flat buffers, to be overwritten, and the parameters' tensors in them."""
        if not self._flats or not self._are_ours():
            self._flats = self._layout.allocate(self._device)
            self._views = self._layout.views(self._flats)
        return self._flats, list(self._views)

    def _are_ours(self) -> bool:
        """Whether nobody else looks at the memory, and the views still do: `Module.to` gives a `.grad` other memory."""
        if sum(map(sys.getrefcount, self._views)) > _REFERENCES * len(self._views):
            return False
        return sum(map(_owners, self._flats)) == len(self._views) + 2 * len(self._flats)


def are_unshared(parameters: Sequence[nn.Parameter]) -> list[bool]:
    """For each parameter whether nothing but its `.grad` looks at the memory of its gradient."""
    gradients = [cast(Tensor, parameter.grad) for parameter in parameters]
    return [
        count <= _references_of_grad() and _owners(gradient) <= 2
        for count, gradient in zip(list(map(sys.getrefcount, gradients)), gradients, strict=True)
    ]


@functools.cache
def _references_of_grad() -> int:
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    return max(map(sys.getrefcount, [parameter.grad]))


def _owners(flat: Tensor) -> int:
    return torch._C._storage_Use_Count(flat.untyped_storage()._cdata)  # tensors, and the object just made
