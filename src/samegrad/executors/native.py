"""The all-reduce of the backend of a process group. It fixes no order of additions, so its bits depend on the number of
ranks, and may depend on the size of the buffer, the version of the library and the machine."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from samegrad.executors.base import Request, Turns
from samegrad.executors.channel import Channel, finish_collective
from samegrad.summation import as_real

__all__ = ["NativeExchange"]


class NativeExchange:
    """See `base.Exchange`; of a rank with `held` contributions."""

    def __init__(self, held: int, request: Request, channel: Channel) -> None:
        self._request, self._channel = request, channel
        self._turns = Turns(request.operation)
        self._slots = [
            [torch.empty(numel, dtype=dtype, device=channel.device) for dtype, numel in request.sizes]
            for _ in range(held)
        ]
        self._works: list[tuple[Tensor, dist.Work | None]] = []

    def slot(self, position: int) -> list[Tensor]:
        """See `base.Exchange.slot`."""
        self._turns.check_open()
        return self._slots[position]

    def start(self) -> NativeExchange:
        """See `base.Exchange.start`; the backend sums while the caller goes on."""
        self._turns.start()
        self._channel.meet(self._request.operation)
        first, *others = self._slots
        with self._channel.explained():
            for flat, total in enumerate(first):
                for slot in others:
                    as_real(total).add_(as_real(slot[flat]))
            self._works = [
                (total, dist.all_reduce(total, group=self._channel.handle, async_op=True))
                for total in first
                if total.numel()
            ]
        return self

    def wait(self) -> list[Tensor]:
        """See `base.Work.wait`."""
        self._turns.wait()
        with self._channel.explained():
            for total, work in self._works:
                finish_collective(work, total.nbytes, self._channel.waits)
        return self._request.own_result(self._slots[0])

    def close(self) -> None:
        """See `base.Exchange.close`."""
        self._turns.close()
        self._slots, self._works = [], []
