"""Ranks on CUDA devices that cannot exchange directly: several on one device, or CUDA beside CPU.

They go through memory of the host that all of them map: copy out, add up there, copy in. Additions of the same numbers
give the same bits on either kind of device.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from samegrad.executors.base import FlatSizes
from samegrad.executors.shared_memory import SharedMemoryGroup, SharedTreeSum
from samegrad.shards import Node, subtrees

__all__ = ["DeviceGroup"]


class DeviceGroup:
    """The ranks of `host`, of which this one keeps its tensors on `device`."""

    def __init__(self, host: SharedMemoryGroup, device: torch.device) -> None:
        self.rank = host.rank
        self.size = host.size
        self._host = host
        self._device = device

    def gather(self, record: bytes, operation: str) -> list[bytes]:
        """Every rank's `record`, by rank."""
        return self._host.gather(record, operation)

    def broadcast(self, tensors: Sequence[Tensor], operation: str) -> None:
        """Overwrites `tensors` with those of rank 0."""
        self._host.broadcast(tensors, operation)

    def tree_sum(self, cut: Sequence[range], leaves: int, sizes: FlatSizes, operation: str) -> _StagedTreeSum:
        """A sum over `leaves` shards, of which rank r holds the range `cut[r]`."""
        held = subtrees(cut[self.rank], leaves)
        return _StagedTreeSum(self._host.tree_sum(cut, leaves, sizes, operation), held, sizes, self._device)


class _StagedTreeSum:
    def __init__(self, host: SharedTreeSum, held: list[Node], sizes: FlatSizes, device: torch.device) -> None:
        self._host = host
        self._held = held
        self._slots = [[torch.empty(numel, dtype=dtype, device=device) for dtype, numel in sizes] for _ in held]
        self._sum = [torch.empty(numel, dtype=dtype, pin_memory=device.type == "cuda") for dtype, numel in sizes]

    def slot(self, position: int) -> list[Tensor]:
        """See `base.TreeSum.slot`."""
        return self._slots[position]

    def run(self, present: Collection[Node], out: Sequence[Tensor]) -> None:
        """See `base.TreeSum.run`."""
        for position, node in enumerate(self._held):
            if node in present:
                for shared, own in zip(self._host.slot(position), self._slots[position], strict=True):
                    shared.copy_(own)
        self._host.run(present, self._sum)
        for private, total in zip(out, self._sum, strict=True):
            private.copy_(total)
