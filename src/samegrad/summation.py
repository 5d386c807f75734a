"""Running sums of shard gradients along the tree, on one rank.

Shards arrive in order. As soon as two siblings are complete the left one takes the right one in, so at most one value
per level is alive. A value is a list of tensors, one for each parameter, in which None means: no shard of this node
used that parameter. None plus x is x, never zero plus x.

Complex numbers are added as pairs of real ones. (torch adds them as a + 1 * b, where a complex product by 1 changes the
signs of zeros and makes NaN of infinities, and a + b is not b + a.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from samegrad.shards import Node, leaves_of, subtrees

__all__ = ["ADDABLE", "RunningSum", "Value", "as_real", "divide"]

Value = list[Tensor | None]

ADDABLE = frozenset(
    [
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
        *(torch.complex128, torch.complex64, torch.complex32),
    ]
)
"""Kinds of numbers that torch adds up. Others it stores only, as float8; and truth values have no sum."""


def as_real(tensor: Tensor) -> Tensor:
    """The same memory as real numbers: of a complex tensor, with one dimension more."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def divide(total: Tensor, weight: float, out: Tensor) -> None:
    """`out` becomes the mean `total` / `weight`; both real, of one shape."""
    if weight == 1.0:
        out.copy_(total)
    else:
        torch.div(total, weight, out=out)


class RunningSum:
    """Adds the values of the shards `held` (of `leaves`) up to the values of its whole subtrees.

    `place`, if given, says where the value of a complete subtree is to be written: for the j-th of them, a list of
    tensors that are overwritten (what is absent there becomes -0.0, to which any x can be added without changing it),
    or None for a part that stays where it is. Without it all values stay where they are.

    The tensors given to `add` belong to this object from then on.
    """

    def __init__(self, held: range, leaves: int, place: Callable[[int], Sequence[Tensor | None]] | None = None) -> None:
        self._leaves = leaves
        self._place = place
        self._nodes = subtrees(held, leaves)
        self._complete = {leaves_of(node, leaves): j for j, node in enumerate(self._nodes)}
        self._stack: list[Value | None] = []

    def take_sibling(self, shard: int) -> Value | None:
        """The value of the left sibling of `shard`, to which the caller adds that of `shard` itself; None if there is
        none, or if the sum of both is to be written to a place of its own."""
        if shard % 2 == 0 or not self._stack or range(shard - 1, shard) in self._complete:
            return None
        is_placed = self._place is not None and range(shard - 1, shard + 1) in self._complete
        if self._stack[-1] is None or is_placed:
            return None
        return self._stack.pop()

    def add(self, shard: int, value: Value | None, with_sibling: bool = False) -> None:
        """Takes the value of the next shard of the range; None if the shard is absent.

        with_sibling: `value` is the sum of this shard and its left sibling, which was taken before.
        """
        node, covered = Node(0, shard), range(shard, shard + 1)
        if with_sibling:
            node, covered = Node(1, shard // 2), range(shard - 1, shard + 1)
        elif covered in self._complete:
            value = self._combine(value, None, self._placed(covered))
        while covered not in self._complete:
            parent = Node(node.level + 1, node.number // 2)
            covered = leaves_of(parent, self._leaves)
            if node.number % 2:
                value = self._combine(self._stack.pop(), value, self._placed(covered))
            elif covered.stop > shard + 1:
                break  # the right sibling is still to come
            node = parent
        self._stack.append(value)

    def values(self) -> list[tuple[Node, Value]]:
        """The complete subtrees that are not absent, from left to right."""
        return [(node, value) for node, value in zip(self._nodes, self._stack, strict=True) if value is not None]

    def _placed(self, covered: range) -> Sequence[Tensor | None] | None:
        j = self._complete.get(covered)
        return self._place(j) if j is not None and self._place is not None else None

    def _combine(self, left: Value | None, right: Value | None, placed: Sequence[Tensor | None] | None) -> Value | None:
        if left is None or right is None:
            only = right if left is None else left
            if only is None or placed is None:
                return only
            return [_sum_into(part, None, out) for part, out in zip(only, placed, strict=True)]
        if placed is not None:
            return [_sum_into(a, b, out) for a, b, out in zip(left, right, placed, strict=True)]
        both = [(as_real(a), as_real(b)) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
        if both:
            torch._foreach_add_([a for a, _ in both], [b for _, b in both])
        return [b if a is None else a for a, b in zip(left, right, strict=True)]


def _sum_into(a: Tensor | None, b: Tensor | None, out: Tensor | None) -> Tensor | None:
    """`out` (or `a`, if there is no `out`) becomes a + b, where None is absent. Returns it, or None if both are."""
    if a is not None and b is not None:
        total = a if out is None else out
        torch.add(as_real(a), as_real(b), out=as_real(total))
        return total
    only = b if a is None else a
    if out is None:
        return only
    if only is None:
        as_real(out).fill_(-0.0)
        return None
    return out.copy_(only)
