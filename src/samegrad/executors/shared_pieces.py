"""The sum along the tree, of which each rank needs some pieces for itself: gradients of the parameters that it updates.

Every rank reads the others' contributions to its own pieces where they are, and keeps its own ones in private memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from samegrad.executors.additions import add_along
from samegrad.executors.base import Piece
from samegrad.executors.counters import Counters
from samegrad.schedules.places import BLOCK
from samegrad.shards import Node, additions
from samegrad.summation import as_real

__all__ = ["SharedPieces"]


class SharedPieces:
    """A sum of the subtrees `nodes` of the tree over `leaves`, whose slots all ranks map; those of this rank begin at
    number `first`. The ranks meet at `counters`."""

    def __init__(
        self,
        counters: Counters,
        nodes: Sequence[Node],
        leaves: int,
        slots: Sequence[list[Tensor]],
        first: int,
        operation: str,
    ) -> None:
        self._counters, self._operation = counters, operation
        self._nodes, self._leaves = nodes, leaves
        self._slots, self._first = slots, first
        self._spare: dict[torch.dtype, Tensor] = {}
        self._read = 0  # the ticket at which every rank has read the slots

    def slot(self, position: int) -> list[Tensor]:
        """The flat buffers for this rank's `position`-th subtree, for what other ranks need of it.

        Waits, if need be, until every rank has read what stood there the last time.
        """
        self._counters.wait(self._read)
        return self._slots[self._first + position]

    def run(
        self,
        present: Collection[Node],
        pieces: Sequence[Piece],
        kept: Mapping[Node, Sequence[Tensor]],
        out: Sequence[Tensor],
    ) -> list[Tensor]:
        """The root's sums of the elements `pieces`, which no other rank asks for; returns one tensor for each.

        present: the subtrees, of all ranks, that are not absent. kept: for each of this rank's subtrees that are
            present, its values of the pieces (flat): they need not be in the slots, where nobody else reads them.
        out: room for the sums. A sum is returned in one of its kept values where that saves a pass over memory, else
            in `out`.
        """
        held = [place for place, node in enumerate(self._nodes) if node in present]
        steps = additions([self._nodes[place] for place in held], self._leaves)
        self._counters.barrier(self._operation)
        sums = []
        for number, (flat, start, stop) in enumerate(pieces):
            values, target = [], out[number]
            for place in held:
                own = kept.get(self._nodes[place])
                values.append(self._slots[place][flat][start:stop] if own is None else own[number])
                if own is not None and len(steps) <= 1:  # nothing is read after it is written
                    target = own[number]
            self._add_up(values, steps, target)
            sums.append(target)
        self._read = self._counters.arrive(self._operation)
        return sums

    def _add_up(self, values: list[Tensor], steps: list[tuple[int, int]], target: Tensor) -> None:
        """Adds `values` (flat, of one size) up into `target`, block by block so that sums in between stay in cache."""
        if not steps:
            if target is not values[0]:
                target.copy_(values[0])
            return
        values, target = [as_real(value).view(-1) for value in values], as_real(target).view(-1)
        numel = target.numel()
        block = BLOCK if len(steps) > 1 else max(numel, 1)
        spare = self._spare_for(target.dtype, len(values) - 1, min(block, numel)) if len(steps) > 1 else []
        for begin in range(0, numel, block):
            end = min(begin + block, numel)
            add_along(steps, [value[begin:end] for value in values], target[begin:end], spare)

    def _spare_for(self, dtype: torch.dtype, rows: int, columns: int) -> list[Tensor]:
        spare = self._spare.get(dtype)
        if spare is None or spare.numel() < rows * columns:
            spare = self._spare[dtype] = torch.empty(rows * columns, dtype=dtype)
        return list(spare[: rows * columns].view(rows, columns))
