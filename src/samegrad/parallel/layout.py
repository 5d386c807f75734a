"""Many tensors in a few flat ones, each at a 64-byte boundary.

Matrix products and convolutions may compute other bits when their operands lie differently in memory, so everything
that shards compute with starts at such a boundary, whatever the number of devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samegrad.executors.base import Piece

__all__ = ["ALIGNMENT", "FlatLayout", "aligned"]

ALIGNMENT = 64
"""Bytes; what torch's own allocator gives on the CPU."""


def aligned(tensor: Tensor) -> Tensor:
    """`tensor` itself if its memory starts at a boundary, else a copy of it that does."""
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone(memory_format=torch.preserve_format)


class FlatLayout:
    """Where each of `tensors` lies in flat buffers, one for each dtype, in order; strides are kept where dense."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        ends: dict[torch.dtype, int] = {}
        self._views: list[tuple[torch.dtype, int, torch.Size, tuple[int, ...]]] = []
        for tensor in tensors:
            start = ends.setdefault(tensor.dtype, 0)
            unit = max(ALIGNMENT // tensor.element_size(), 1)
            ends[tensor.dtype] = start + -(-tensor.numel() // unit) * unit
            strides = torch.empty_like(tensor, device="meta").stride()
            self._views.append((tensor.dtype, start, tensor.shape, strides))
        self.sizes = list(ends.items())
        self._index = {dtype: index for index, dtype in enumerate(ends)}

    def allocate(self, device: torch.device) -> list[Tensor]:
        """Flat buffers of this layout, uninitialised."""
        return [torch.empty(numel, dtype=dtype, device=device) for dtype, numel in self.sizes]

    def views(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """The tensors as views of the flat buffers `flats`."""
        return [
            flats[self._index[dtype]].as_strided(shape, strides, flats[self._index[dtype]].storage_offset() + start)
            for dtype, start, shape, strides in self._views
        ]

    def piece(self, position: int) -> Piece:
        """The range of the flat buffers that the tensor at `position` takes."""
        dtype, start, shape, _ = self._views[position]
        return self._index[dtype], start, start + shape.numel()
