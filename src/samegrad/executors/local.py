"""One process: the group of a single rank, and the sum along the tree written as plainly as possible.

`local_tree_sum` is the reference that the other executors must equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from torch import Tensor

from samegrad.executors.base import FlatSizes
from samegrad.shards import Node, additions

__all__ = ["SoloGroup", "local_tree_sum"]


def local_tree_sum(contributions: Sequence[tuple[Node, Tensor]], leaves: int) -> Tensor:
    """The root's sum of the subtrees `contributions` (disjoint, in any order) of the tree over `leaves` shards."""
    ordered = sorted(contributions, key=lambda pair: pair[0].number << pair[0].level)
    values = [value for _, value in ordered]
    for i, j in additions([node for node, _ in ordered], leaves):
        values[i] = values[i] + values[j]
    return values[0]


class SoloGroup:
    """A group of one rank: there is nobody to wait for, and its own subtree is the root."""

    rank = 0
    size = 1

    def gather(self, record: bytes, operation: str) -> list[bytes]:
        """The only record."""
        return [record]

    def broadcast(self, tensors: Sequence[Tensor], operation: str) -> None:
        """Nothing to do."""

    def tree_sum(self, cut: Sequence[range], leaves: int, sizes: FlatSizes, operation: str) -> NoReturn:
        """Never needed: the running sum of the only rank is the root's already."""
        raise AssertionError("a group of one rank has nothing to exchange")
