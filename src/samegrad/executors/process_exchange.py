"""A schedule over a process group of `torch.distributed`: every round is a batch of sends and receives, and between
ranks of one host, of words that something may be read.

Over connections values travel as bytes, so any dtype goes over any backend. On CPUs a long buffer goes through the
rounds in pieces.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from samegrad.executors.base import FlatSizes, Request, Turns
from samegrad.executors.bound_round import BoundRound, Cells, Unread
from samegrad.executors.channel import Channel
from samegrad.executors.host_messages import Outgoing
from samegrad.executors.messages import RankRound, rounds_of
from samegrad.executors.neighbourhood import Links, Neighbourhood
from samegrad.schedules.ir import Schedule
from samegrad.shards import even

__all__ = ["ProcessExchange"]

_PIECE = 1 << 23  # bytes; with less, the calls for a piece cost more than what is hidden behind the next one
_MOST_LANES = 64

_Parts = list[list[range]]
"""By flat buffer, where each chunk lies, or a piece of it."""

_Make = Callable[[int, torch.dtype], Tensor]
"""Makes a flat tensor of so many elements."""


class ProcessExchange:
    """See `base.Exchange`; of `rank`. Every rank makes it alike."""

    def __init__(self, rank: int, schedule: Schedule, request: Request, channel: Channel) -> None:
        self._request, self._channel = request, channel
        self._turns = Turns(request.operation)
        self._held = len(schedule.cut.nodes[rank])
        self._gets_result = rank in (schedule.owners or schedule.cut.holders)
        sizes, count = request.sizes, schedule.slots()[rank]
        rounds, lanes = rounds_of(schedule.rounds, rank), _lanes(schedule, request, channel)
        self._count = len(rounds)
        with contextlib.ExitStack() as opened:
            outgoing = _outgoing(rounds, lanes, count, sizes, channel.neighbours)
            if outgoing is not None:
                opened.callback(outgoing.close)
            make: _Make = _maker(channel.device) if outgoing is None else outgoing.empty
            self._slots = [[make(numel, dtype).zero_() for dtype, numel in sizes] for _ in range(count)]
            self._lanes = [self._lane(rounds, parts, rank, make) for parts in lanes]
            links = self._link(rounds, outgoing)
        for bound in itertools.chain(*self._lanes):
            bound.bind(links)

    def _lane(self, rounds: Sequence[RankRound], parts: _Parts, rank: int, make: _Make) -> list[BoundRound]:
        """The rounds of a piece."""
        unread: Unread = []
        lane = []
        for each in rounds:
            cells = [
                Cells(
                    [slot[flat] for slot in self._slots],
                    ranges,
                    {spot: make(len(ranges[spot.chunk]), dtype) for spot in each.kept},
                )
                for flat, (ranges, (dtype, _)) in enumerate(zip(parts, self._request.sizes, strict=True))
            ]
            lane.append(BoundRound(each, cells, rank, self._channel, unread))
        return lane

    def _link(self, rounds: Sequence[RankRound], outgoing: Outgoing | None) -> Links:
        """To the ranks of this host; `outgoing` is this rank's memory."""
        neighbours = self._channel.neighbours
        if neighbours is None:
            return Links()
        if outgoing is not None:
            for bound in itertools.chain(*self._lanes):
                bound.list_cells(outgoing)
        sources = {message.peer for each in rounds for message in each.received}
        return neighbours.link(outgoing, sources, self._channel.gather)

    def slot(self, position: int) -> list[Tensor]:
        """See `base.Exchange.slot`."""
        self._turns.check_open()
        return self._slots[: self._held][position]

    def start(self) -> ProcessExchange:
        """See `base.Exchange.start`; what is sent in the first round is on its way then."""
        self._turns.start()
        self._channel.meet(self._request.operation)
        if self._count:
            with self._channel.explained():
                _start_together([lane[0] for lane in self._lanes])
        return self

    def wait(self) -> list[Tensor]:
        """See `base.Work.wait`."""
        self._turns.wait()
        with self._channel.explained():
            for number in range(1, self._count):
                for lane in self._lanes:
                    lane[number - 1].finish()
                    lane[number].start()
            for lane in self._lanes if self._count else ():
                lane[-1].finish()
            for lane in self._lanes if self._count else ():
                lane[-1].settle()
        return self._request.own_result(self._slots[0] if self._gets_result else ())

    def close(self) -> None:
        """See `base.Exchange.close`."""
        self._turns.close()
        self._slots, self._lanes = [], []  # and with them the memory of others


def _start_together(rounds: Sequence[BoundRound]) -> None:
    """Starts the same round of all lanes."""
    if len(rounds) == 1:
        rounds[0].start()  # in one batch, as NCCL needs it
        return
    for each in rounds:
        each.pack()
        each.receive()
    for each in rounds:
        each.send()


def _maker(device: torch.device) -> _Make:
    """Makes tensors in private memory."""
    return lambda numel, dtype: torch.empty(numel, dtype=dtype, device=device)


def _outgoing(
    rounds: Sequence[RankRound],
    lanes: Sequence[_Parts],
    slots: int,
    sizes: FlatSizes,
    neighbours: Neighbourhood | None,
) -> Outgoing | None:
    """Memory for all that is sent by a rank with so many slots; None if no other one could read it, or there is none:
    then it is sent over connections."""
    listed: Counter[int] = Counter()
    for each in rounds:
        for message in each.sent:
            if neighbours is not None and message.peer in neighbours.pids:
                listed[message.peer] += len(message.spots) * len(sizes) * len(lanes)
    if neighbours is None or not listed:
        return None
    cells = [numel * dtype.itemsize for dtype, numel in sizes] * slots
    cells += [
        len(ranges[spot.chunk]) * dtype.itemsize
        for parts in lanes
        for ranges, (dtype, _) in zip(parts, sizes, strict=True)
        for each in rounds
        for spot in each.kept
    ]
    with contextlib.suppress(OSError):
        return Outgoing(list(neighbours.pids), listed, cells)
    return None


def _lanes(schedule: Schedule, request: Request, channel: Channel) -> list[_Parts]:
    """Pieces of the chunks, which go through the rounds one behind the other: while one is added, the next one is on
    its way. By lane, where they lie."""
    chunks = [schedule.ranges(numel) for _, numel in request.sizes]
    nbytes = [
        len(part) * dtype.itemsize for parts, (dtype, _) in zip(chunks, request.sizes, strict=True) for part in parts
    ]
    count = 1 if channel.device.type == "cuda" else min(-(-max(nbytes, default=0) // _PIECE), _MOST_LANES) or 1
    cut = [[even(len(part), count) for part in parts] for parts in chunks]
    return [
        [
            [
                range(part.start + of[lane].start, part.start + of[lane].stop)
                for part, of in zip(parts, pieces, strict=True)
            ]
            for parts, pieces in zip(chunks, cut, strict=True)
        ]
        for lane in range(count)
    ]
