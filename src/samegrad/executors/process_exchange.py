"""A schedule over a process group of `torch.distributed`: every round is a batch of sends and receives.

Values travel as bytes, so any dtype goes over any backend.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from samegrad.executors.base import Request, Turns
from samegrad.executors.messages import RankRound, Spot, rounds_of
from samegrad.schedules.ir import Op, Schedule
from samegrad.summation import as_real

__all__ = ["ProcessExchange"]


class ProcessExchange:
    """See `base.Exchange`; of `rank`, with buffers on `device`.

    meet: called before the first round. explained: a context in which errors of torch get explanations.
    """

    def __init__(
        self,
        rank: int,
        schedule: Schedule,
        request: Request,
        device: torch.device,
        meet: Callable[[str], None],
        explained: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._request, self._meet, self._explained = request, meet, explained
        self._turns = Turns(request.operation)
        sizes = request.sizes
        self._held = len(schedule.cut.nodes[rank])
        self._slots = [
            [torch.zeros(numel, dtype=dtype, device=device) for dtype, numel in sizes]
            for _ in range(schedule.slots()[rank])
        ]
        self._rounds = [_BoundRound(each, rank) for each in rounds_of(schedule.rounds, rank)]
        for each in self._rounds:
            for flat, (_, numel) in enumerate(sizes):
                each.bind([slot[flat] for slot in self._slots], schedule.ranges(numel))

    def slot(self, position: int) -> list[Tensor]:
        """See `base.Exchange.slot`."""
        self._turns.check_open()
        return self._slots[: self._held][position]

    def start(self) -> ProcessExchange:
        """See `base.Exchange.start`."""
        self._turns.start()
        self._meet(self._request.operation)
        return self

    def wait(self) -> list[Tensor]:
        """See `base.Work.wait`."""
        self._turns.wait()
        with self._explained():
            for each in self._rounds:
                each.run()
        return self._request.own_result(self._slots[0])

    def close(self) -> None:
        """See `base.Exchange.close`."""
        self._turns.close()
        self._slots, self._rounds = [], []


class _BoundRound:
    """One round, with the tensors that it reads and writes."""

    def __init__(self, each: RankRound, rank: int) -> None:
        self._each, self._rank = each, rank
        self._packed: list[tuple[Tensor, Tensor]] = []  # where to, what: copied before anything else
        self._sent: list[tuple[int, Tensor]] = []
        self._received: list[tuple[int, Tensor]] = []
        self._applied: list[tuple[Op, Tensor, Tensor]] = []

    def bind(self, slots: Sequence[Tensor], parts: Sequence[range]) -> None:
        """Adds one flat buffer of each slot, cut in `parts`."""

        def cell(spot: Spot) -> Tensor:
            return slots[spot.slot][parts[spot.chunk].start : parts[spot.chunk].stop]

        kept = {spot: torch.empty_like(cell(spot)) for spot in self._each.kept}
        self._packed += [(copy, cell(spot)) for spot, copy in kept.items()]
        for message in self._each.sent:
            cells = [kept[spot] if spot in kept else cell(spot) for spot in message.spots]
            whole, views = _one_tensor(cells)
            if views is not None:
                self._packed += zip(views, cells, strict=True)
            self._sent.append((message.peer, whole))
        arriving: dict[int, list[Tensor]] = {}
        for message in self._each.received:
            cells = [cell(spot) for spot in message.spots]
            whole, views = _one_tensor(cells, is_direct=message.is_direct)
            if message.is_direct and views is not None:
                self._applied += [(Op.COPY, target, value) for target, value in zip(cells, views, strict=True)]
            arriving[message.peer] = cells if views is None else views
            self._received.append((message.peer, whole))
        for apply in self._each.applied:
            if apply.peer != self._rank:
                value = arriving[apply.peer][apply.number]
            else:
                value = kept[apply.source] if apply.source in kept else cell(apply.source)
            self._applied.append((apply.op, cell(apply.spot), value))

    def run(self) -> None:
        """Sends, receives, adds."""
        for target, source in self._packed:
            target.copy_(source)
        transfers = [
            dist.P2POp(act, tensor.view(torch.uint8), peer)
            for act, messages in ((dist.isend, self._sent), (dist.irecv, self._received))
            for peer, tensor in messages
            if tensor.numel()
        ]
        for work in dist.batch_isend_irecv(transfers) if transfers else ():
            work.wait()
        for op, target, value in self._applied:
            if op is Op.ADD:
                as_real(target).add_(as_real(value))
            else:
                target.copy_(value)


def _one_tensor(cells: Sequence[Tensor], is_direct: bool = True) -> tuple[Tensor, list[Tensor] | None]:
    """A flat tensor for a message of `cells`: their own memory if they lie one behind the other and `is_direct`, else
    new memory, and each cell's part of it."""
    first = cells[0]
    ends = [cell.data_ptr() + cell.nbytes for cell in cells]
    if is_direct and all(cell.data_ptr() == end for cell, end in zip(cells[1:], ends, strict=False)):
        return first.as_strided((sum(cell.numel() for cell in cells),), (1,)), None
    whole = torch.empty(sum(cell.numel() for cell in cells), dtype=first.dtype, device=first.device)
    return whole, list(whole.split([cell.numel() for cell in cells]))
