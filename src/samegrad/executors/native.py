"""The all-reduce of the backend of a process group. It fixes no order of additions, so its bits depend on the number of
ranks, and may depend on the size of the buffer, the version of the library and the machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from samegrad.executors.base import FlatSizes
from samegrad.summation import as_real

__all__ = ["NativeExchange"]


class NativeExchange:
    """See `base.Exchange`; of a rank with `held` contributions, on `device`.

    meet: called before the sum. explained: a context in which errors of torch get explanations.
    """

    def __init__(
        self,
        held: int,
        sizes: FlatSizes,
        device: torch.device,
        meet: Callable[[], None],
        explained: Callable[[], contextlib.AbstractContextManager[None]],
        out: Sequence[Tensor] | None,
    ) -> None:
        self._meet, self._explained = meet, explained
        self._out = None if out is None else list(out)
        self._slots = [[torch.empty(numel, dtype=dtype, device=device) for dtype, numel in sizes] for _ in range(held)]
        self._works: list[dist.Work | None] = []

    def slot(self, position: int) -> list[Tensor]:
        """See `base.Exchange.slot`."""
        return self._slots[position]

    def start(self) -> NativeExchange:
        """See `base.Exchange.start`; the backend sums while the caller goes on."""
        self._meet()
        first, *others = self._slots
        with self._explained():
            for flat, total in enumerate(first):
                for slot in others:
                    as_real(total).add_(as_real(slot[flat]))
            self._works = [dist.all_reduce(total, async_op=True) for total in first if total.numel()]
        return self

    def wait(self) -> list[Tensor]:
        """See `base.Work.wait`."""
        with self._explained():
            for work in self._works:
                if work is not None:
                    work.wait()
        if self._out is None:
            return self._slots[0]
        for target, total in zip(self._out, self._slots[0], strict=True):
            target.copy_(total)
        return self._out

    def close(self) -> None:
        """See `base.Exchange.close`."""
        self._slots, self._works, self._out = [], [], None
