"""A schedule on memory that all ranks map: values are read where they are, so that nothing is sent.

A rank computes the additions that the schedule gives it (`places`); between levels all wait for each other. Where
several additions follow each other they are done block by block, so that sums in between stay in the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from samegrad.executors.additions import Run, add_up
from samegrad.executors.base import FlatSizes, Request, Turns
from samegrad.executors.counters import Counters
from samegrad.schedules.ir import Schedule
from samegrad.schedules.places import BLOCK, EVERYONE, Area, Place, Plan, Step, plan_of
from samegrad.summation import as_real

__all__ = ["SharedExchange"]

MakeBuffers = Callable[[int], list[list[Tensor]]]
"""Makes so many sets of flat buffers in memory that all ranks map."""

Buffers = dict[Place, list[Tensor]]


@dataclass(frozen=True, slots=True)
class _Phase:
    """What an exchange does; if there are two, they take turns.

    levels: the additions of each. copies: (source, target), what is copied to the result at the end.
    """

    slots: list[list[Tensor]]
    levels: list[list[Run]]
    result: list[Tensor]
    copies: list[tuple[Tensor, Tensor]]


class SharedExchange:
    """See `base.Exchange`; the ranks meet at `counters`. Every rank makes it alike."""

    def __init__(
        self,
        counters: Counters,
        rank: int,
        schedule: Schedule,
        request: Request,
        make_buffers: MakeBuffers,
    ) -> None:
        self._counters, self._operation = counters, request.operation
        self._turns = Turns(request.operation)
        sizes, plan = request.sizes, plan_of(schedule)
        self._meets_at_the_end = plan.meets_at_the_end
        self._read = 0  # the ticket at which every rank has read the slots
        self._started = 0
        self._ranges = [schedule.ranges(numel) for _, numel in sizes]
        self._widths = [2 if dtype.is_complex else 1 for dtype, _ in sizes]  # real numbers of an element
        slots = [
            Place(Area.SLOT, holder, slot)
            for holder, nodes in enumerate(schedule.cut.nodes)
            for slot in range(len(nodes))
        ]
        known = {*plan.places, *(place for own in plan.results.values() for place in own.values())}
        others = sorted(
            place
            for place in known
            if place.area is Area.ROOM or (place.area is Area.RESULT and place.rank not in plan.private)
        )
        shared = [*slots, *others]
        buffers = dict(zip(shared, make_buffers(len(shared)), strict=True))
        buffers.update(_temporaries(plan, rank, sizes))
        own = [place for place in slots if place.rank == rank]
        result, replaced = Place(Area.RESULT, EVERYONE), plan.replaceable
        if replaced is None or request.out is not None:
            self._phases = [self._phase(own, plan, rank, request, buffers)]
        else:  # the result takes the place of a slot, and what it leaves free is the slot of the next time
            self._phases = [
                self._phase(own, plan, rank, request, {**buffers, replaced: each, result: each})
                for each in (buffers[replaced], buffers[result])
            ]

    def slot(self, position: int) -> list[Tensor]:
        """See `base.Exchange.slot`."""
        self._turns.check_open()
        self._counters.wait(self._read)
        return self._phases[0].slots[position]

    def start(self) -> SharedExchange:
        """See `base.Exchange.start`; the others can go on as far as they need this rank's slots."""
        self._turns.start()
        self._started = self._counters.arrive(self._operation)
        return self

    def wait(self) -> list[Tensor]:
        """See `base.Work.wait`."""
        self._turns.wait()
        counters, operation = self._counters, self._operation
        ticket, phase = self._started, self._phases[0]
        for program in phase.levels:
            counters.wait(ticket)
            for run in program:
                add_up(run)
            ticket = counters.arrive(operation)
        self._read = ticket
        if self._meets_at_the_end:
            counters.wait(ticket)
        for source, target in phase.copies:
            target.copy_(source)
        self._phases.append(self._phases.pop(0))
        return phase.result

    def close(self) -> None:
        """See `base.Exchange.close`."""
        self._turns.close()
        self._phases = []

    def _phase(self, slots: Sequence[Place], plan: Plan, rank: int, request: Request, buffers: Buffers) -> _Phase:
        result, copies = self._own_result(plan, rank, request, buffers)
        levels = [self._program(level, buffers) for level in plan.steps[rank]]
        return _Phase([buffers[place] for place in slots], levels, result, copies)

    def _own_result(
        self, plan: Plan, rank: int, request: Request, buffers: Buffers
    ) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        """The buffers that `wait` returns, and what is to be copied there at the end."""
        places = plan.results.get(rank, {})
        own, out, sizes = sorted(set(places.values())), request.out, request.sizes
        if rank in plan.private:
            private = list(out) if out is not None else _empty(sizes)
            buffers[own[0]] = private
            return private, []
        if not own:
            return [], []
        if out is None and len(own) == 1:
            return buffers[own[0]], []
        result = list(out) if out is not None else _empty(sizes)
        copies = []
        for flat, ranges in enumerate(self._ranges):
            for place, chunks in itertools.groupby(sorted(places), key=places.__getitem__):
                covered = list(chunks)
                for start, stop in _joined([ranges[chunk] for chunk in covered]):
                    copies.append((buffers[place][flat][start:stop], result[flat][start:stop]))
        return result, copies

    def _program(self, level: Sequence[Sequence[Step]], buffers: Buffers) -> list[Run]:
        """The additions of one level: chunks that follow each other and are treated alike are one."""
        runs = []
        for flat, ranges in enumerate(self._ranges):
            for steps, group in itertools.groupby(range(len(level)), key=lambda chunk: tuple(level[chunk])):
                for start, stop in _joined([ranges[chunk] for chunk in group] if steps else []):
                    runs.extend(self._runs(steps, flat, start, stop, buffers))
        return runs

    def _runs(self, steps: Sequence[Step], flat: int, start: int, stop: int, buffers: Buffers) -> list[Run]:
        has_temporaries = any(step.out.area is Area.TEMPORARY for step in steps)

        def at(place: Place) -> Tensor:
            buffer = buffers[place][flat]
            return buffer[:numel] if place.area is Area.TEMPORARY else _flat(buffer[start:stop])

        numel = (stop - start) * self._widths[flat]
        additions = [(at(left), None if right is None else at(right), at(out)) for left, right, out in steps]
        return [Run(additions, numel)] if has_temporaries else [Run([each], numel) for each in additions]


def _temporaries(plan: Plan, rank: int, sizes: FlatSizes) -> Buffers:
    """Blocks for what is temporary; a buffer is as large as the longest chunk, or as a block if that is less."""
    own = [place for place in plan.places if place.area is Area.TEMPORARY and place.rank == rank]
    return {
        place: [_flat(torch.empty(min(numel, BLOCK), dtype=dtype))[:BLOCK] for dtype, numel in sizes] for place in own
    }


def _joined(ranges: Sequence[range]) -> list[tuple[int, int]]:
    """Ranges in order, those that touch made one; empty ones left out."""
    joined: list[tuple[int, int]] = []
    for each in ranges:
        if joined and joined[-1][1] == each.start:
            joined[-1] = (joined[-1][0], each.stop)
        elif len(each):
            joined.append((each.start, each.stop))
    return [(start, stop) for start, stop in joined if start < stop]


def _flat(tensor: Tensor) -> Tensor:
    """The same flat memory as real numbers."""
    return as_real(tensor).view(-1)


def _empty(sizes: FlatSizes) -> list[Tensor]:
    return [torch.empty(numel, dtype=dtype) for dtype, numel in sizes]
