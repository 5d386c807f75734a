"""The weighted mean over ranks that share memory, of which each keeps a copy in private memory: that of gradients.

    leave     a rank writes into its slot what the others add up of its contribution, or all of it
    (the ranks meet, and tell each other what their contributions count)
    add_up    rank r adds part r up along the tree, shows the sum to all, and keeps it divided by the weight
    take      every rank divides the other parts into private memory

A block is added up, looked at, divided and kept while it is in the cache. A contribution may stand in the private
memory where its mean is to be; then this rank's own part of it goes through no other memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from samegrad.executors.additions import add_along
from samegrad.executors.counters import Counters
from samegrad.shards import Node, additions
from samegrad.summation import as_real, divide

__all__ = ["Segment", "SharedMean"]

_ALIGNMENT = 1024  # numbers; where one rank's part ends and the next one's begins
_BLOCK = 1 << 20  # bytes; the calls for a smaller one take longer than what the cache saves
_STRIDE = 8  # numbers; each rank's flag has a cache line of its own


@dataclass(frozen=True, slots=True)
class Segment:
    """The numbers of flat buffer `flat` from `start` on, whose mean is to stand in `target`.

    target: private memory, flat. scale: None if this rank's contribution stands in its slot; else it stands in
    `target`, and counts so much. Complex numbers are pairs of real ones here.
    """

    flat: int
    start: int
    target: Tensor
    scale: float | None = None

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + self.target.numel()


class SharedMean:
    """The mean over ranks of flat buffers, seen from `rank`. All ranks make it alike, and meet at `counters`.

    slots: the buffers of each rank. flags: `flags_numel` integers. All ranks map them.
    are_finite: whether the last mean held neither NaN nor infinity; the same on all ranks.
    """

    def __init__(
        self,
        counters: Counters,
        rank: int,
        slots: Sequence[Sequence[Tensor]],
        flags: Tensor,
        operation: str,
    ) -> None:
        self._counters, self._rank, self._operation = counters, rank, operation
        self._slot = list(slots[rank])
        self._slots = [list(map(_numbers, flats)) for flats in slots]
        self._flags = flags[::_STRIDE]
        self._parts = [[_part(flat.numel(), each, len(slots)) for flat in self._slots[0]] for each in range(len(slots))]
        self._taken = 0  # the ticket at which all ranks have taken what they need from the slots
        self._additions = additions([Node(0, each) for each in range(len(slots))], len(slots))
        self._is_kept = self.are_finite = True
        self._weight = 1.0

    @staticmethod
    def flags_numel(ranks: int) -> int:
        """How many flags there are for so many ranks."""
        return ranks * _STRIDE

    def slot(self) -> list[Tensor]:
        """This rank's buffers, to be asked for each time: waits, if need be, until nobody reads them any more."""
        self._counters.wait(self._taken)
        return self._slot

    def leave(self, segment: Segment) -> None:
        """Writes to the slot what other ranks add up of the contribution that stands in `segment.target`."""
        for begin, end in _outside(self._parts[self._rank][segment.flat], segment):
            self._write(segment, begin, end)

    def leave_own(self, segment: Segment) -> None:
        """Writes to the slot what `leave` did not: the mean is to stand elsewhere after all."""
        for begin, end in _inside(self._parts[self._rank][segment.flat], segment):
            self._write(segment, begin, end)

    def add_up(self, segments: Sequence[Segment], weight: float) -> None:
        """Adds this rank's part up, to be divided by `weight`. Returns when all ranks have done so.

        The ranks must have met since they filled their slots. Where the mean is not finite, contributions in targets
        are still there, or are known to be finite.
        """
        self._is_kept, self._weight = True, weight
        for segment in segments:
            for begin, end in _inside(self._parts[self._rank][segment.flat], segment):
                block = _BLOCK // segment.target.element_size()
                for start in range(begin, end, block):
                    self._add_up(segment, start, min(start + block, end), weight)
        self._flags[self._rank] = self._is_kept
        self._counters.barrier(self._operation)
        self.are_finite = bool(self._flags.all())

    def take(self, segments: Sequence[Segment]) -> None:
        """Writes what is not there yet into the targets of the same `segments`."""
        for segment in segments:
            for rank, parts in enumerate(self._parts):
                if rank != self._rank or not self._is_kept:
                    for begin, end in _inside(parts[segment.flat], segment):
                        total = self._sum(rank, segment.flat)[begin:end]
                        divide(total, self._weight, _cut(segment, begin, end))
        self._taken = self._counters.arrive(self._operation)

    def _sum(self, rank: int, flat: int) -> Tensor:
        """Where the part of `rank` is shown to all: in the first slot that it has read, which is in its cache."""
        return self._slots[int(rank == 0 and len(self._slots) > 1)][flat]

    def _write(self, segment: Segment, begin: int, end: int) -> None:
        slot = self._slots[self._rank][segment.flat][begin:end].copy_(_cut(segment, begin, end))
        if segment.scale not in (None, 1.0):
            slot.mul_(segment.scale)

    def _add_up(self, segment: Segment, begin: int, end: int, weight: float) -> None:
        """One block: short enough for all that is read and written to stay in the cache."""
        target = _cut(segment, begin, end)
        values = [flats[segment.flat][begin:end] for flats in self._slots]
        if segment.scale is not None:
            values[self._rank] = target if segment.scale == 1.0 else target * segment.scale
        total = add_along(self._additions, values, self._sum(self._rank, segment.flat)[begin:end])
        self._is_kept = self._is_kept and _is_finite(total) and (weight >= 1.0 or _is_finite(total / weight))
        if self._is_kept:
            divide(total, weight, target)


def _part(numel: int, rank: int, ranks: int) -> range:
    """What of `numel` numbers `rank` adds up."""
    start, stop = (numel * each // ranks // _ALIGNMENT * _ALIGNMENT for each in (rank, rank + 1))
    return range(start, numel if rank == ranks - 1 else stop)


def _inside(part: range, segment: Segment) -> Iterator[tuple[int, int]]:
    begin, end = max(part.start, segment.start), min(part.stop, segment.stop)
    if begin < end:
        yield begin, end


def _outside(part: range, segment: Segment) -> Iterator[tuple[int, int]]:
    for begin, end in (segment.start, min(part.start, segment.stop)), (max(part.stop, segment.start), segment.stop):
        if begin < end:
            yield begin, end


def _cut(segment: Segment, begin: int, end: int) -> Tensor:
    return segment.target[begin - segment.start : end - segment.start]


def _is_finite(block: Tensor) -> bool:
    """A sum is quick and finds all there is; that of large finite numbers may be infinite, too."""
    return math.isfinite(block.sum().item()) or bool(block.isfinite().all())


def _numbers(flat: Tensor) -> Tensor:
    return as_real(flat).view(-1)
