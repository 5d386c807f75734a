"""Means and variances of values that are spread over ranks, added up in one order.

Each rank knows how many values it has, their mean, and the sum of their squared distances from it. Two such records
make one for all their values (Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm for computing
sample variances"), without the difference of two large numbers that sums of squares end in. Ranks combine along the
tree over ranks, in double precision on the CPU, so every rank gets the same bits. One without values is absent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from samegrad.executors import Group
from samegrad.shards import Node, additions
from samegrad.timeline import span

__all__ = ["Moments", "combined_moments", "summed_rows"]

T = TypeVar("T")

_HEADER = struct.Struct("<qd")


@dataclass(frozen=True, slots=True)
class Moments:
    """Of `count` values in each of some channels: their mean, and the sum of squared distances from it.

    mean, squares: float64 on the CPU, one number for each channel.
    """

    count: int
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Moments:
        """The moments of `values` (rows, channels, ...) by channel; sums are added up in the dtype of `values`."""
        count, dims = values[:, :1].numel(), _all_but_channels(values)
        if not count:
            nothing = torch.zeros(values.shape[1], dtype=torch.float64)
            return cls(0, nothing, nothing)
        rounded = values.mean(dims, keepdim=True)
        centred = values - rounded
        rest = centred.mean(dims).to("cpu", torch.float64)  # between the mean and what it was rounded to
        squares = centred.square_().sum(dims).to("cpu", torch.float64) - count * rest * rest
        return cls(count, rounded.flatten().to("cpu", torch.float64) + rest, squares)

    def __add__(self, other: Moments) -> Moments:
        count, distance = self.count + other.count, other.mean - self.mean
        mean = self.mean + distance * (other.count / count)
        squares = self.squares + other.squares + distance * distance * (self.count * other.count / count)
        return Moments(count, mean, squares)


def combined_moments(own: Moments, group: Group, operation: str) -> Moments:
    """Those of the values of all ranks; of none, if no rank has any. Every rank calls it and gets the same bits."""
    found = [
        Moments(count, *numbers.chunk(2))
        for count, _, numbers in _gathered(group, own.count, 0.0, [own.mean, own.squares], operation)
    ]
    present = [moments if moments.count else None for moments in found]
    return _along_the_tree(present, lambda a, b: a + b) or own


def summed_rows(rows: Sequence[Tensor], count: int, weight: float, group: Group, operation: str) -> tuple[Tensor, ...]:
    """The sum over ranks of weight * row, for each of `rows` (float64 on the CPU, of one length, alike on all ranks).

    count: how many values the rows of this rank are made of; a rank with 0, or with the weight 0, is absent.
    """
    found = _gathered(group, count, weight, rows, operation)
    present = [numbers * factor if n and factor else None for n, factor, numbers in found]
    total = _along_the_tree(present, lambda a, b: a + b)
    return (torch.zeros_like(found[0][2]) if total is None else total).chunk(len(rows))


def _gathered(
    group: Group, count: int, weight: float, rows: Sequence[Tensor], operation: str
) -> list[tuple[int, float, Tensor]]:
    record = _HEADER.pack(count, weight) + torch.cat(list(rows)).numpy().tobytes()
    with span(operation, "waiting"):
        gathered = group.gather(record, operation)
    found = []
    for other in gathered:
        numbers = torch.frombuffer(bytearray(other[_HEADER.size :]), dtype=torch.float64)
        found.append((*_HEADER.unpack_from(other), numbers))
    return found


def _along_the_tree(values: Sequence[T | None], add: Callable[[T, T], T]) -> T | None:
    """The sum of one value for each rank, along the tree over ranks; None is absent."""
    present = [(Node(0, rank), value) for rank, value in enumerate(values) if value is not None]
    sums = [value for _, value in present]
    for i, j in additions([node for node, _ in present], len(values)):
        sums[i] = add(sums[i], sums[j])
    return sums[0] if sums else None


def _all_but_channels(values: Tensor) -> list[int]:
    return [dim for dim in range(values.dim()) if dim != 1]
