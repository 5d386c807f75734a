"""Ranks on CUDA devices that cannot exchange directly: several on one device, or CUDA beside CPU.

They go through memory of the host that all of them map: copy out, add up there, copy in. Additions of the same numbers
give the same bits on either kind of device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samegrad.executors.base import FlatSizes, Turns
from samegrad.executors.shared_exchange import SharedExchange
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.schedules.ir import Schedule

__all__ = ["DeviceGroup", "StagedExchange"]


class DeviceGroup:
    """The ranks of `host`, of which this one keeps its tensors on `device`."""

    def __init__(self, host: SharedMemoryGroup, device: torch.device) -> None:
        self.rank = host.rank
        self.size = host.size
        self._host = host
        self._device = device

    def gather(self, record: bytes, operation: str) -> list[bytes]:
        """Every rank's `record`, by rank."""
        return self._host.gather(record, operation)

    def broadcast(self, tensors: Sequence[Tensor], operation: str, source: int = 0) -> None:
        """Overwrites `tensors` with those of rank `source`."""
        self._host.broadcast(tensors, operation, source)

    def twin(self, operation: str) -> DeviceGroup:
        """See `base.Group.twin`."""
        return DeviceGroup(self._host.twin(operation), self._device)

    def prepare(
        self, schedule: Schedule, sizes: FlatSizes, operation: str, out: Sequence[Tensor] | None = None
    ) -> StagedExchange:
        """See `base.Executor.prepare`."""
        pinned = [torch.empty(numel, dtype=dtype, pin_memory=self._device.type == "cuda") for dtype, numel in sizes]
        host = self._host.prepare(schedule, sizes, operation, pinned)
        own = [torch.empty(numel, dtype=dtype, device=self._device) for dtype, numel in sizes] if out is None else out
        return StagedExchange(host, len(schedule.cut.nodes[self.rank]), own, Turns(operation))


class StagedExchange:
    """See `base.Exchange`: `held` slots on the device of `out`, which are copied to the host, where `host` sums."""

    def __init__(self, host: SharedExchange, held: int, out: Sequence[Tensor], turns: Turns) -> None:
        self._host, self._out, self._turns = host, list(out), turns
        self._slots = [[torch.empty_like(flat) for flat in out] for _ in range(held)]

    def slot(self, position: int) -> list[Tensor]:
        """See `base.Exchange.slot`."""
        self._turns.check_open()
        return self._slots[position]

    def start(self) -> StagedExchange:
        """See `base.Exchange.start`."""
        self._turns.start()
        for position, flats in enumerate(self._slots):
            for shared, own in zip(self._host.slot(position), flats, strict=True):
                shared.copy_(own)
        self._host.start()
        return self

    def wait(self) -> list[Tensor]:
        """See `base.Work.wait`."""
        self._turns.wait()
        for target, total in zip(self._out, self._host.wait(), strict=True):
            target.copy_(total)
        return self._out

    def close(self) -> None:
        """See `base.Exchange.close`."""
        self._turns.close()
        self._host.close()
        self._slots, self._out = [], []
