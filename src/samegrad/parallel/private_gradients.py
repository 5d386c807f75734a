"""The memory that `.grad` shows after an exchange: of this rank alone, and used again only when nobody looks at it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from samegrad.parallel.layout import FlatLayout

__all__ = ["PrivateGradients", "are_unshared"]

_uses: Callable[[Tensor], int] = getattr(Tensor, "_use_count", lambda _: 1)  # of C++ too, where torch tells
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
        if sum(map(_uses, self._views)) > len(self._views):  # older torch counts what C++ holds (a graph) only here
            return False
        return sum(map(_owners, self._flats)) == len(self._views) + 2 * len(self._flats)


def are_unshared(parameters: Sequence[nn.Parameter]) -> list[bool]:
    """For each parameter whether nothing but its `.grad` looks at the memory of its gradient."""
    gradients = [cast(Tensor, parameter.grad) for parameter in parameters]
    references, uses = _counts_of_grad()
    return [
        count <= references and _uses(gradient) <= uses and _owners(gradient) <= 2 and _is_of_torch(gradient)
        for count, gradient in zip(list(map(sys.getrefcount, gradients)), gradients, strict=True)
    ]


@functools.cache
def _counts_of_grad() -> tuple[int, int]:
    """References to a gradient in a list that nothing else looks at: those of Python, and those that C++ counts."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    gradients = [parameter.grad]
    return max(map(sys.getrefcount, gradients)), _uses(gradients[0])


def _owners(flat: Tensor) -> int:
    return torch._C._storage_Use_Count(flat.untyped_storage()._cdata)  # tensors, and the object just made


def _is_of_torch(gradient: Tensor) -> bool:
    """Whether torch allocated the memory: that of an array of NumPy, say, may have other owners, or be read-only."""
    return gradient.untyped_storage().resizable()
