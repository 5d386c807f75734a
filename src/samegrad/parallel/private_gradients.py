"""The memory that `.grad` shows after an exchange: of this rank alone, and used again only when nobody looks at it."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from samegrad.parallel.layout import FlatLayout
from samegrad.schedules.places import BLOCK
from samegrad.summation import as_real

__all__ = ["PrivateGradients"]

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
        self.are_finite = True

    def mean(self, total: list[Tensor], weight: float) -> list[Tensor]:
        """`total` / `weight`, as one tensor for each parameter. Sets `are_finite`: whether it holds neither NaN nor
        infinity; the same answer wherever the same bits are."""
        if not self._flats or self._is_looked_at():
            self._flats = self._layout.allocate(self._device)
            self._views = self._layout.views(self._flats)
        self.are_finite = True
        for flat, part in zip(self._flats, total, strict=True):
            self.are_finite &= _divide(as_real(part), weight, as_real(flat))
        return list(self._views)

    def _is_looked_at(self) -> bool:
        if sum(map(sys.getrefcount, self._views)) > _REFERENCES * len(self._views):
            return True
        return sum(map(_owners, self._flats)) > len(self._views) + 2 * len(self._flats)


def _divide(total: Tensor, weight: float, out: Tensor) -> bool:
    """`out` becomes `total` / `weight`; whether all of it is finite, which is asked while a block is in the cache."""
    step = BLOCK if out.device.type == "cpu" else max(out.numel(), 1)
    sums = []
    for part, block in zip(total.split(step), out.split(step), strict=True):
        if weight == 1.0:
            block.copy_(part)
        else:
            torch.div(part, weight, out=block)
        sums.append(block.sum())
    # A sum is quick and finds all there is; that of large finite numbers may be infinite, too.
    return bool(torch.stack(sums).isfinite().all()) or bool(out.isfinite().all())


def _owners(flat: Tensor) -> int:
    return torch._C._storage_Use_Count(flat.untyped_storage()._cdata)  # tensors, and the object just made
