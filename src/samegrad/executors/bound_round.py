"""A round of a schedule with the tensors that one rank of a process group reads and writes.

Messages to and from ranks whose memory is mapped (see `host_messages`) lie still, and values are read there. All others
are sends and receives of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from samegrad.executors.additions import Addition, Run, add_up
from samegrad.executors.channel import LONG, Channel
from samegrad.executors.host_messages import Outgoing, Receiver, Sender
from samegrad.executors.messages import RankRound, Spot
from samegrad.executors.neighbourhood import Links
from samegrad.schedules.ir import Op
from samegrad.summation import as_real

__all__ = ["BoundRound", "Cells", "Unread"]

_LONG = 1 << 16  # bytes; cells of that size are messages of their own

Unread = list[tuple[Sender, int]]
"""Messages in this rank's memory of which it is not known yet that they have been read."""


@dataclass(frozen=True, slots=True)
class Cells:
    """One flat buffer of each slot, cut in `parts`; kept: copies of what a round reads and writes."""

    slots: Sequence[Tensor]
    parts: Sequence[range]
    kept: dict[Spot, Tensor]

    def cell(self, spot: Spot) -> Tensor:
        """What is written."""
        return self.slots[spot.slot][self.parts[spot.chunk].start : self.parts[spot.chunk].stop]

    def value(self, spot: Spot) -> Tensor:
        """What is read."""
        return self.kept[spot] if spot in self.kept else self.cell(spot)


class _Transfer(NamedTuple):
    """act: `isend` or `irecv` of `torch.distributed`. tensor: as bytes."""

    act: Callable[..., Any]
    tensor: Tensor
    peer: int


class BoundRound:
    """Round `each` of `rank`, with the cells of every flat buffer. unread: of the rounds before, of this piece."""

    def __init__(self, each: RankRound, cells: Sequence[Cells], rank: int, channel: Channel, unread: Unread) -> None:
        self._each, self._cells, self._rank, self._channel = each, cells, rank, channel
        self._packed: list[tuple[Tensor, Tensor]] = []  # where to, what: copied before anything else
        self._sends: list[_Transfer] = []
        self._receives: list[_Transfer] = []
        self._senders: list[Sender] = []
        self._receivers: list[Receiver] = []
        self._runs: list[Run] = []
        self._works: list[dist.Work] = []
        self._unread, self._offered = unread, list[tuple[Sender, int]]()
        self._is_long = False

    def list_cells(self, outgoing: Outgoing) -> None:
        """Lists what readers of `outgoing` read in this round."""
        for cells in self._cells:
            for message in self._each.sent:
                for spot in message.spots if outgoing.has_reader(message.peer) else ():
                    outgoing.list_cell(message.peer, cells.value(spot))

    def bind(self, links: Links) -> None:
        """Finds out what to do. To be called for all rounds of all pieces, in the order of `list_cells`."""
        self._senders = [links.senders[each.peer] for each in self._each.sent if each.peer in links.senders]
        self._receivers = [links.receivers[each.peer] for each in self._each.received if each.peer in links.receivers]
        for cells in self._cells:
            self._packed += [(copy, cells.cell(spot)) for spot, copy in cells.kept.items()]
            self._bind_sent(cells, links)
            self._bind_applied(cells, self._bind_received(cells, links))
        self._is_long = any(each.tensor.numel() > LONG for each in (*self._sends, *self._receives))

    def _bind_sent(self, cells: Cells, links: Links) -> None:
        for message in self._each.sent:
            if message.peer not in links.senders:
                values = [cells.value(spot) for spot in message.spots]
                wholes, views = _messages(values, in_place=True)
                self._packed += [(view, each) for view, each in zip(views, values, strict=True) if view is not each]
                self._sends += _transfers(dist.isend, wholes, message.peer)

    def _bind_received(self, cells: Cells, links: Links) -> dict[int, list[Tensor]]:
        """The values that arrive, by rank."""
        arriving: dict[int, list[Tensor]] = {}
        for message in self._each.received:
            targets = [cells.cell(spot) for spot in message.spots]
            if message.peer in links.receivers:
                views = [links.receivers[message.peer].cell(to) for to in targets]
            else:
                wholes, views = _messages(targets, in_place=message.is_direct)
                self._receives += _transfers(dist.irecv, wholes, message.peer)
            if message.is_direct:
                self._runs += [
                    Run([(view, None, to)], to.numel())
                    for to, view in zip(targets, views, strict=True)
                    if view is not to
                ]
            arriving[message.peer] = views
        return arriving

    def _bind_applied(self, cells: Cells, arriving: dict[int, list[Tensor]]) -> None:
        additions: dict[int, list[Addition]] = {}  # by chunk: those of different chunks have no memory in common
        for apply in self._each.applied:
            is_own = apply.peer == self._rank
            value = as_real(cells.value(apply.source) if is_own else arriving[apply.peer][apply.number])
            target = as_real(cells.cell(apply.spot))
            addition = (target, value, target) if apply.op is Op.ADD else (value, None, target)
            additions.setdefault(apply.spot.chunk, []).append(addition)
        for chunk, each in additions.items():
            numel = len(cells.parts[chunk])
            in_blocks = self._channel.device.type == "cpu"  # they stay in its cache; on a GPU each would be a kernel
            self._runs += [Run(each, numel)] if in_blocks else [Run([one], numel) for one in each]

    def start(self) -> None:
        """Is ready to receive, and sends. Gloo asks for what comes on the connection on which it sends: asked for
        later, it would have to wait until all that was sent before is through, and the link would carry one direction
        after the other."""
        self.pack()
        self._transfer([*self._receives, *self._sends])

    def pack(self) -> None:
        """Copies what is read and written in this round, and what is not sent as it lies; what is read in this rank's
        memory may be read from now on."""
        for target, source in self._packed:
            target.copy_(source)
        self._offered = [(sender, sender.offer()) for sender in self._senders]
        if self._receives:  # to where something may not have been read yet
            self.settle()

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
        for receiver in self._receivers:
            receiver.wait()
        self.settle()
        for run in self._runs:
            add_up(run)
        for receiver in self._receivers:
            receiver.has_read()
        self._unread += self._offered

    def settle(self) -> None:
        """Waits until all that is unread of the rounds before has been read."""
        for sender, number in self._unread:
            sender.wait(number)
        self._unread.clear()


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
