"""The contributions to one sum, added along the tree as they come; each counts once. No I/O.

A contribution is the value of a node of the tree over the shards (`samegrad.shards`): of a shard, or of a subtree that
a worker has added up already. Contributions may come in any order, twice, and both for a node and for a node above it.
With four shards, of which {01} was accepted first:

    comes     is                       because
    {0}       no news                  {01} has it in
    {23}      accepted                 and added to {01} at once: all four are there
    {0123}    accepted, replaces all   what is below it is in it

Since a sum of two values has the same bits in either order, and the tree fixes all else, so has the result.
"""

from __future__ import annotations

import functools

from torch import Tensor

from samegrad.errors import RequestRefused
from samegrad.shards import Node, additions, height, leaves_of
from samegrad.summation import as_real

__all__ = ["Contributions", "check_node"]


@functools.lru_cache(maxsize=1 << 12)  # asked for every slice of every push
def check_node(node: Node, leaves: int) -> None:
    """Raises RequestRefused for what is no node of the tree over `leaves` leaves."""
    if not 0 <= node.level <= height(leaves) or node.number < 0 or not leaves_of(node, leaves):
        raise RequestRefused(f"node {node.number} of level {node.level} is not in the tree over {leaves} shards")


class Contributions:
    """The contributions to one sum over `leaves` shards that have come so far.

    The tensors given to `accept` belong to this object from then on.
    """

    def __init__(self, leaves: int) -> None:
        self._leaves = leaves
        self._root = Node(height(leaves), 0)
        self._values: dict[Node, Tensor] = {}

    def accept(self, node: Node, value: Tensor) -> bool:
        """Whether `value`, that of `node`, is news; then it is in. Raises RequestRefused for a node not in the tree."""
        check_node(node, self._leaves)
        if node == self._root and not self._values:
            self._values[node] = value
            return True
        above = node
        while True:
            if above in self._values:
                return False
            if above.level == self._root.level:
                break
            above = Node(above.level + 1, above.number // 2)
        covered = leaves_of(node, self._leaves)
        for below in [each for each in self._values if leaves_of(each, self._leaves)[0] in covered]:
            del self._values[below]
        self._values[node] = value
        self._join(node)
        return True

    def _join(self, node: Node) -> None:
        """Adds siblings that are both there, from `node` upwards; a lone last node moves up as it is."""
        while node.level < self._root.level:
            sibling = Node(node.level, node.number ^ 1)
            exists = bool(leaves_of(sibling, self._leaves))
            if exists and sibling not in self._values:
                return
            own = self._values.pop(node)
            if exists:
                other = self._values.pop(sibling)
                left, right = (own, other) if node.number % 2 == 0 else (other, own)
                as_real(left).add_(as_real(right))
                own = left
            node = Node(node.level + 1, node.number // 2)
            self._values[node] = own

    def is_complete(self, absent: frozenset[int] = frozenset()) -> bool:
        """Whether all shards are in, but for those that are `absent`."""
        if self._root in self._values:
            return True
        if not absent:
            return False
        there = {leaf for node in self._values for leaf in leaves_of(node, self._leaves)}
        return bool(there) and there | absent >= set(range(self._leaves))

    def total(self) -> Tensor:
        """The sum along the tree of what is there, which must be something; the object must not be used after that."""
        if self._root in self._values:
            return self._values[self._root]
        nodes = sorted(self._values, key=lambda node: leaves_of(node, self._leaves)[0])
        values = [as_real(self._values[node]) for node in nodes]
        for target, source in additions(nodes, self._leaves):
            values[target].add_(values[source])
        return self._values[nodes[0]]
