"""What an executor offers to the layers above: the seam between summing shard gradients and moving them.

One rank's part of a sum is a list of (tree node, flat buffers): for each whole subtree of its shards, one flat tensor
per dtype. After `run`, every rank holds the root's sum. The additions are those of `shards.additions`, so the bits do
not depend on how the shards are shared out, nor on the executor.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch import Tensor

from samegrad.shards import Node

__all__ = ["FlatSizes", "Group", "Piece", "TreeSum"]

FlatSizes = Sequence[tuple[torch.dtype, int]]
"""Dtype and number of elements of each flat buffer."""

Piece = tuple[int, int, int]
"""(which flat buffer, start, stop): a range of elements."""


class TreeSum(Protocol):
    """The sum of one bucket of gradients over all ranks, as often as wanted. All ranks make and run it alike."""

    def slot(self, position: int) -> list[Tensor]:
        """The flat buffers into which this rank writes its `position`-th subtree before `run`; absent parts as -0.0.

        Waits, if need be, until every rank has read what stood there the last time.
        """
        ...

    def run(self, present: Collection[Node], out: Sequence[Tensor]) -> None:
        """Writes the root's sum of the subtrees `present` (on whichever rank) into the flat buffers `out`."""
        ...


class Group(Protocol):
    """The ranks that train together, seen from one of them. Every method is called by all ranks in the same order.

    operation: what the exchange is for, in words for a person ("step 3 of epoch 0"); the same on every rank. Ranks that
        meet for different operations raise CallMismatch, all of them, instead of taking each other's data.
    """

    rank: int
    size: int

    def gather(self, record: bytes, operation: str) -> list[bytes]:
        """Every rank's `record` (of any length), by rank. Nobody returns before all have called it."""
        ...

    def broadcast(self, tensors: Sequence[Tensor], operation: str) -> None:
        """Overwrites `tensors` with those of rank 0, which must have the same dtypes and shapes."""
        ...

    def tree_sum(self, cut: Sequence[range], leaves: int, sizes: FlatSizes, operation: str) -> TreeSum:
        """A sum over `leaves` shards, of which rank r holds the range `cut[r]`."""
        ...
