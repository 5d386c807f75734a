"""One process: the group of a single rank, and the sum along the tree written as plainly as possible.

`local_tree_sum` is the reference that the other executors must equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samegrad.executors.base import FlatSizes, Request, Turns
from samegrad.executors.cells import run_on_tensors
from samegrad.schedules.ir import Schedule
from samegrad.shards import Node, additions
from samegrad.summation import as_real

__all__ = ["LocalExchange", "SoloGroup", "local_tree_sum"]


def local_tree_sum(contributions: Sequence[tuple[Node, Tensor]], leaves: int) -> Tensor:
    """The root's sum of the subtrees `contributions` (disjoint, in any order) of the tree over `leaves` shards."""
    ordered = sorted(contributions, key=lambda pair: pair[0].number << pair[0].level)
    values = [as_real(value) for _, value in ordered]
    for i, j in additions([node for node, _ in ordered], leaves):
        values[i] = values[i] + values[j]
    return torch.view_as_complex(values[0]) if contributions[0][1].is_complex() else values[0]


class SoloGroup:
    """A group of one rank: there is nobody to wait for. It plays all ranks of a schedule itself, if asked to."""

    rank = 0
    size = 1

    def gather(self, record: bytes, operation: str) -> list[bytes]:
        """The only record."""
        return [record]

    def broadcast(self, tensors: Sequence[Tensor], operation: str, source: int = 0) -> None:
        """Nothing to do."""

    def twin(self, operation: str) -> SoloGroup:
        """See `base.Group.twin`."""
        return SoloGroup()

    def prepare(
        self, schedule: Schedule, sizes: FlatSizes, operation: str, out: Sequence[Tensor] | None = None
    ) -> LocalExchange:
        """See `base.Executor.prepare`: contributions are numbered through all ranks of the schedule."""
        return LocalExchange(schedule, Request(sizes, operation, out))


class LocalExchange:
    """See `base.Exchange`; the slots are those of all ranks, one rank after the other."""

    def __init__(self, schedule: Schedule, request: Request) -> None:
        self._schedule, self._request, self._turns = schedule, request, Turns(request.operation)
        self._held = [
            [[torch.empty(numel, dtype=dtype) for dtype, numel in request.sizes] for _ in nodes]
            for nodes in schedule.cut.nodes
        ]

    def slot(self, position: int) -> list[Tensor]:
        """See `base.Exchange.slot`."""
        self._turns.check_open()
        return [flats for slots in self._held for flats in slots][position]

    def start(self) -> LocalExchange:
        """See `base.Exchange.start`."""
        self._turns.start()
        return self

    def wait(self) -> list[Tensor]:
        """See `base.Work.wait`; the result is that of the first rank that holds something."""
        self._turns.wait()
        first = self._held[self._schedule.cut.holders[0]][0]
        for flat in range(len(first)):
            run_on_tensors(self._schedule, [[flats[flat] for flats in slots] for slots in self._held])
        return self._request.own_result(first)

    def close(self) -> None:
        """See `base.Exchange.close`."""
        self._turns.close()
        self._held = []
