"""The gradients of the parameters that one rank updates for all ranks of its host, which share the parameters."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.parallel.layout import FlatLayout
from samegrad.shards import Node
from samegrad.summation import Value, as_real
from samegrad.timeline import span

__all__ = ["OwnedGradients"]


class OwnedGradients:
    """The sums over all shards for the parameters at the positions `own`.

    What this rank's shards contribute to those stays in private memory; what they contribute to others goes to slots.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: SharedMemoryGroup,
        cut: Sequence[range],
        leaves: int,
        own: Sequence[int],
    ) -> None:
        self._own = list(own)
        self._layout = FlatLayout(parameters)
        self._views = self._layout.views(self._layout.allocate(parameters[0].device))
        self._pieces = group.prepare_pieces(cut, leaves, self._layout.sizes, "sum of gradients")
        self._slots: dict[int, list[Tensor | None]] = {}

    def slot(self, number: int) -> list[Tensor | None]:
        """Where the value of this rank's subtree `number` is to be written; None for what stays where it is."""
        flats = self._pieces.slot(number)  # waits until the slot is free, so it is asked for every time
        if number not in self._slots:
            views: list[Tensor | None] = list(self._layout.views(flats))
            for own in self._own:  # only this rank needs those
                views[own] = None
            self._slots[number] = views
        return self._slots[number]

    def sums(self, values: Sequence[tuple[Node, Value]], used: Sequence[bool], present: Collection[Node]) -> Value:
        """The sums over all ranks; None for parameters that no shard used, or that are not `own`.

        values: this rank's subtrees. used: whether any shard used a parameter. present: the subtrees that are not
        absent, of all ranks.
        """
        own = self._own
        kept = {node: [_kept(value[p], self._views[p]) for p in own] for node, value in values}
        flat_kept = {node: [_flat(part) for part in parts] for node, parts in kept.items()}
        ranges = [self._layout.piece(position) for position in own]
        with span("sum of gradients", "exchange"):
            sums = self._pieces.run(present, ranges, flat_kept, [_flat(self._views[position]) for position in own])
        gradients: Value = [None] * len(self._views)
        for number, position in enumerate(own):
            if used[position]:
                homes = [parts[number] for node, parts in kept.items() if flat_kept[node][number] is sums[number]]
                gradients[position] = homes[0] if homes else self._views[position]
        return gradients


def _kept(part: Tensor | None, like: Tensor) -> Tensor:
    """`part` with the strides of `like`; if there is none, -0.0 everywhere, which changes no sum."""
    if part is not None and part.stride() == like.stride():
        return part
    copy = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    if part is not None:
        return copy.copy_(part)
    as_real(copy).fill_(-0.0)
    return copy


def _flat(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor in the order of memory."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
