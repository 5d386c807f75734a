"""The weighted means of gradients: of buckets that are exchanged while backward runs; or `SharedMeans`, after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from samegrad.executors.base import fill_absent
from samegrad.parallel.accumulation import Accumulation
from samegrad.parallel.backward_record import BackwardRecord
from samegrad.parallel.private_gradients import PrivateGradients
from samegrad.parallel.reducer import Bucket, Reducer, Shares
from samegrad.schedules.places import BLOCK
from samegrad.summation import as_real, divide

__all__ = ["BucketMeans", "Gather", "GradientMeans"]

Gather = Callable[[], list[BackwardRecord]]
"""Tells the other ranks what this one has, and returns what all have."""


class GradientMeans(Protocol):
    """The means over ranks of the gradients of some parameters, whose `positions` among all are known by who uses it.

    A backward is: `begin`, `arrived` for each gradient if it `starts_early`, `gathered`, `add_up`, `take`.

    where: what ranks wait for when they tell each other what they have, for the name of that operation.
    unwritten: positions of the parameters whose gradients no rank knows yet as they are now.
    late: the numbers of what has to be exchanged again.
    are_finite: whether the last means held neither NaN nor infinity; the same on all ranks.
    """

    starts_early: bool
    where: str

    @property
    def are_finite(self) -> bool: ...

    @property
    def late(self) -> Collection[int]: ...

    @property
    def unwritten(self) -> Sequence[int]: ...

    def begin(self) -> None:
        """A backward begins whose gradients are exchanged."""
        ...

    def arrived(self, at: int) -> None:
        """The gradient of the parameter that is `at` this place in `positions` is there, or more of it."""
        ...

    def gathered(self, gather: Gather, is_absent: bool) -> list[BackwardRecord]:
        """Backward has ended: writes what is left to write, and returns what `gather` does. is_absent: this rank has
        no gradients, as one that has left the loop."""
        ...

    def add_up(self, late: Collection[int], kinds: bytes, weight: float) -> None:
        """Computes the means: the sum divided by `weight`. late: of all ranks. kinds: what they have together, see
        `Accumulation.kinds`, for all parameters. Afterwards the gradients of this rank are still there, as far as they
        are not finite."""
        ...

    def take(self) -> list[Tensor]:
        """The means, in the order of `positions`; of those that no rank has, anything."""
        ...

    def close(self) -> None:
        """Lets go of all buffers."""
        ...


class _Mean(NamedTuple):
    """That of a bucket, as one tensor for each parameter."""

    views: list[Tensor]
    is_finite: bool


class BucketMeans:
    """See `GradientMeans`; exchanged by a `Reducer`, divided into private memory."""

    where = ""

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[nn.Parameter],
        positions: Sequence[int],
        shares: Shares,
        accumulation: Accumulation,
        operation: str,
        device: torch.device,
    ) -> None:
        self._positions, self._accumulation = positions, accumulation
        named = [(names[at], parameters[at]) for at in positions]
        self._reducer = Reducer(named, shares, operation, self._fill, guesses=True, taken=self._taken)
        self._private = [PrivateGradients(bucket.layout, device) for bucket in self._reducer.buckets]
        self._divided: dict[int, _Mean] = {}  # by number of the bucket
        self._weight, self._repeats = float(shares.group.size), True  # of all ranks, and whether it stays the same
        self._means: list[Tensor] = []
        self._is_absent = False
        self.starts_early = self._reducer.starts_early
        self.are_finite = True
        self.arrived, self.close = self._reducer.arrived, self._reducer.close

    @property
    def late(self) -> Collection[int]:
        """See `GradientMeans`: numbers of buckets."""
        return self._reducer.late

    @property
    def unwritten(self) -> Sequence[int]:
        """See `GradientMeans`."""
        return [self._positions[at] for number in self.late for at in self._reducer.buckets[number].positions]

    def begin(self) -> None:
        """See `GradientMeans.begin`."""
        self._reducer.begin()
        self._divided = {}

    def gathered(self, gather: Gather, is_absent: bool) -> list[BackwardRecord]:
        """See `GradientMeans.gathered`; records travel beside the last buckets if they can."""
        reducer, self._is_absent = self._reducer, is_absent
        if not reducer.is_apart:
            reducer.finish()
            return gather()
        reducer.start_rest()
        try:
            return gather()
        finally:
            reducer.finish()  # if both fail, it is what the exchange says that names a bucket

    def add_up(self, late: Collection[int], kinds: bytes, weight: float) -> None:
        """See `GradientMeans.add_up`."""
        if late:
            self._reducer.again(late)
        means: list[Tensor | None] = [None] * len(self._positions)
        repeats = weight == self._weight
        is_divided, self._weight, self._repeats = self._repeats and repeats, weight, repeats
        self.are_finite = True
        for bucket in self._reducer.buckets:
            if not is_divided:
                self._divide(bucket)
            found = self._divided.pop(bucket.number)
            self.are_finite &= found.is_finite
            for at, view in zip(bucket.positions, found.views, strict=True):
                means[at] = view
        self._means = [mean for mean in means if mean is not None]

    def take(self) -> list[Tensor]:
        """See `GradientMeans.take`."""
        means, self._means = self._means, []  # nothing here may look at private memory
        return means

    def _taken(self, bucket: Bucket) -> None:
        """The sum of a bucket has come, while backward goes on."""
        if self._repeats:
            self._divide(bucket)

    def _divide(self, bucket: Bucket) -> None:
        self._divided.pop(bucket.number, None)  # nothing here may look at private memory
        flats, views = self._private[bucket.number].room()
        pairs = zip(bucket.total, flats, strict=True)
        are_finite = [_divide(as_real(total), self._weight, as_real(flat)) for total, flat in pairs]
        self._divided[bucket.number] = _Mean(views, all(are_finite))

    def _fill(self, bucket: Bucket) -> None:
        if self._is_absent:
            fill_absent(bucket.exchange.slot(0))
        else:
            self._accumulation.write([self._positions[at] for at in bucket.positions], bucket.slot(0))


def _divide(total: Tensor, weight: float, out: Tensor) -> bool:
    """`out` becomes `total` / `weight`; whether all of it is finite, which is asked while a block is in the cache."""
    step = BLOCK if out.device.type == "cpu" else max(out.numel(), 1)
    found = 0.0
    for part, block in zip(total.split(step), out.split(step), strict=True):
        divide(part, weight, block)
        found += float(block.sum())
    # A sum is quick and finds all there is; that of large finite numbers may be infinite, too.
    return math.isfinite(found) or bool(out.isfinite().all())
