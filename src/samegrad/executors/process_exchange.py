"""A schedule over a process group of `torch.distributed`: every round is a batch of sends and receives.

Values travel as bytes, so any dtype goes over any backend. Over Gloo a long buffer goes through the rounds in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from samegrad.executors.additions import Addition, Run, add_up
from samegrad.executors.base import Request, Turns
from samegrad.executors.channel import LONG, Channel
from samegrad.executors.messages import RankRound, Spot, rounds_of
from samegrad.schedules.ir import Op, Schedule
from samegrad.shards import even
from samegrad.summation import as_real

__all__ = ["ProcessExchange"]

_PIECE = 1 << 23  # bytes; with less, the calls for a piece cost more than what is hidden behind the next one
_MOST_LANES = 64
_LONG = 1 << 16  # bytes; cells of that size are messages of their own


class ProcessExchange:
    """See `base.Exchange`; of `rank`."""

    def __init__(self, rank: int, schedule: Schedule, request: Request, channel: Channel) -> None:
        self._request, self._channel = request, channel
        device = channel.device
        self._turns = Turns(request.operation)
        sizes = request.sizes
        self._held = len(schedule.cut.nodes[rank])
        self._gets_result = rank in (schedule.owners or schedule.cut.holders)
        self._slots = [
            [torch.zeros(numel, dtype=dtype, device=device) for dtype, numel in sizes]
            for _ in range(schedule.slots()[rank])
        ]
        rounds = rounds_of(schedule.rounds, rank)
        self._count = len(rounds)
        self._lanes: list[list[_BoundRound]] = []
        for parts in _lanes(schedule, request, device):
            lane = [_BoundRound(each, rank, channel) for each in rounds]
            for each in lane:
                for flat, ranges in enumerate(parts):
                    each.bind([slot[flat] for slot in self._slots], ranges)
            self._lanes.append(lane)

    def slot(self, position: int) -> list[Tensor]:
        """See `base.Exchange.slot`."""
        self._turns.check_open()
        return self._slots[: self._held][position]

    def start(self) -> ProcessExchange:
        """See `base.Exchange.start`."""
        self._turns.start()
        self._channel.meet(self._request.operation)
        return self

    def wait(self) -> list[Tensor]:
        """See `base.Work.wait`."""
        self._turns.wait()
        with self._channel.explained():
            if self._count:
                _start_together([lane[0] for lane in self._lanes])
            for number in range(1, self._count):
                for lane in self._lanes:
                    lane[number - 1].finish()
                    lane[number].start()
            for lane in self._lanes if self._count else ():
                lane[-1].finish()
        return self._request.own_result(self._slots[0] if self._gets_result else ())

    def close(self) -> None:
        """See `base.Exchange.close`."""
        self._turns.close()
        self._slots, self._lanes = [], []


class _Transfer(NamedTuple):
    """act: `isend` or `irecv` of `torch.distributed`. tensor: as bytes."""

    act: Callable[..., Any]
    tensor: Tensor
    peer: int


class _BoundRound:
    """One round, with the tensors that it reads and writes."""

    def __init__(self, each: RankRound, rank: int, channel: Channel) -> None:
        self._each, self._rank, self._channel = each, rank, channel
        self._packed: list[tuple[Tensor, Tensor]] = []  # where to, what: copied before anything else
        self._sends: list[_Transfer] = []
        self._receives: list[_Transfer] = []
        self._runs: list[Run] = []
        self._works: list[dist.Work] = []
        self._is_long = False

    def bind(self, slots: Sequence[Tensor], parts: Sequence[range]) -> None:
        """Adds one flat buffer of each slot, cut in `parts`."""

        def cell(spot: Spot) -> Tensor:
            return slots[spot.slot][parts[spot.chunk].start : parts[spot.chunk].stop]

        kept = {spot: torch.empty_like(cell(spot)) for spot in self._each.kept}
        self._packed += [(copy, cell(spot)) for spot, copy in kept.items()]
        for message in self._each.sent:
            cells = [kept[spot] if spot in kept else cell(spot) for spot in message.spots]
            wholes, views = _messages(cells, in_place=True)
            self._packed += [(view, each) for view, each in zip(views, cells, strict=True) if view is not each]
            self._sends += _transfers(dist.isend, wholes, message.peer)
        arriving: dict[int, list[Tensor]] = {}
        additions: dict[int, list[Addition]] = {}  # by chunk: those of different chunks have no memory in common
        for message in self._each.received:
            cells = [cell(spot) for spot in message.spots]
            wholes, views = _messages(cells, in_place=message.is_direct)
            if message.is_direct:
                self._runs += [
                    Run([(view, None, to)], to.numel()) for to, view in zip(cells, views, strict=True) if view is not to
                ]
            arriving[message.peer] = views
            self._receives += _transfers(dist.irecv, wholes, message.peer)
        for apply in self._each.applied:
            if apply.peer != self._rank:
                value = arriving[apply.peer][apply.number]
            else:
                value = kept[apply.source] if apply.source in kept else cell(apply.source)
            target, value = as_real(cell(apply.spot)), as_real(value)
            addition = (target, value, target) if apply.op is Op.ADD else (value, None, target)
            additions.setdefault(apply.spot.chunk, []).append(addition)
        self._is_long = any(each.tensor.numel() > LONG for each in (*self._sends, *self._receives))
        for chunk, each in additions.items():
            numel = len(parts[chunk])
            in_blocks = slots[0].device.type == "cpu"  # they stay in its cache; on a GPU each would be a kernel
            self._runs += [Run(each, numel)] if in_blocks else [Run([one], numel) for one in each]

    def start(self) -> None:
        """Is ready to receive, and sends. Gloo asks for what comes on the connection on which it sends: asked for
        later, it would have to wait until all that was sent before is through, and the link would carry one direction
        after the other."""
        self.pack()
        self._transfer([*self._receives, *self._sends])

    def pack(self) -> None:
        """Copies what is read and written in this round, and what is not sent as it lies."""
        for target, source in self._packed:
            target.copy_(source)

    def receive(self) -> None:
        """Is ready for what comes, for which `finish` waits."""
        self._transfer(self._receives)

    def send(self) -> None:
        """Starts to send, for which `finish` waits."""
        self._transfer(self._sends)

    def _transfer(self, transfers: list[_Transfer]) -> None:
        if transfers and transfers[0].tensor.device.type == "cuda":  # NCCL needs to know of all at once
            self._works += dist.batch_isend_irecv([dist.P2POp(*each, self._channel.handle) for each in transfers])
        else:  # over Gloo a batch is the same, after more work in Python
            self._works += [act(tensor, peer, self._channel.handle) for act, tensor, peer in transfers]

    def finish(self) -> None:
        """Waits, and adds."""
        works, self._works = self._works, []
        self._channel.finish(works, self._is_long)
        for run in self._runs:
            add_up(run)


def _start_together(rounds: Sequence[_BoundRound]) -> None:
    """Starts the same round of all lanes."""
    if len(rounds) == 1:
        rounds[0].start()  # in one batch, as NCCL needs it
        return
    for each in rounds:
        each.pack()
        each.receive()
    for each in rounds:
        each.send()


def _transfers(act: Callable[..., Any], tensors: Sequence[Tensor], peer: int) -> list[_Transfer]:
    return [_Transfer(act, tensor.view(torch.uint8), peer) for tensor in tensors if tensor.numel()]


def _messages(cells: Sequence[Tensor], in_place: bool) -> tuple[list[Tensor], list[Tensor]]:
    """The messages for `cells` of one rank, and each cell's part of them: its own memory, if that is sent as it is.

    Both ends must find the same messages, so their number depends on sizes only: long cells go alone, short ones
    together.
    """
    numel = sum(cell.numel() for cell in cells)
    if in_place and (len(cells) == 1 or numel * cells[0].element_size() >= _LONG * len(cells)):
        return list(cells), list(cells)
    whole = torch.empty(numel, dtype=cells[0].dtype, device=cells[0].device)
    views = list(whole.split([cell.numel() for cell in cells]))
    is_long = numel * whole.element_size() >= _LONG * len(cells)
    return (views if is_long else [whole]), views


def _lanes(schedule: Schedule, request: Request, device: torch.device) -> list[list[list[range]]]:
    """Pieces of the chunks, which go through the rounds one behind the other: while one is added, the next one is on
    its way. By lane and flat buffer, where each chunk's piece lies."""
    chunks = [schedule.ranges(numel) for _, numel in request.sizes]
    nbytes = [
        len(part) * dtype.itemsize for parts, (dtype, _) in zip(chunks, request.sizes, strict=True) for part in parts
    ]
    count = 1 if device.type == "cuda" else min(-(-max(nbytes, default=0) // _PIECE), _MOST_LANES) or 1
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
