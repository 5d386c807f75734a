"""Additions over one range of memory, block by block where sums in between are to stay in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from samegrad.schedules.places import BLOCK

__all__ = ["Addition", "Run", "add_along", "add_up"]

Addition = tuple[Tensor, Tensor | None, Tensor]
"""left, right, out: out becomes left + right, or a copy of left if there is no right."""


@dataclass(frozen=True, slots=True)
class Run:
    """Additions over one range, each of `left`, `right` and `out` that long, or a block for what is temporary."""

    additions: list[Addition]
    numel: int


def add_up(run: Run) -> None:
    """Does the additions of `run`, in order."""
    if run.numel <= BLOCK or len(run.additions) == 1:
        for left, right, out in run.additions:
            _add(left, right, out)
        return
    blocks = [
        (left.split(BLOCK), None if right is None else right.split(BLOCK), out.split(BLOCK))
        for left, right, out in run.additions
    ]
    for number, start in enumerate(range(0, run.numel, BLOCK)):
        length = min(BLOCK, run.numel - start)
        for left, right, out in blocks:
            _add(_block(left, number, length), right and _block(right, number, length), _block(out, number, length))


def add_along(
    steps: Sequence[tuple[int, int]], values: Sequence[Tensor], out: Tensor, spare: Sequence[Tensor] = ()
) -> Tensor:
    """The sum of `values`, a block of each, in the order of `steps` (see `shards.additions`): `out`, and returned.

    spare: room for sums in between, as long as a block or longer, for all values but the first; new memory without.
    """
    parts = list(values)
    for i, j in steps:
        room = out if i == 0 else spare[i - 1][: out.numel()] if spare else None
        parts[i] = torch.add(parts[i], parts[j], out=room)
    return out if steps else out.copy_(parts[0])


def _block(blocks: Sequence[Tensor], number: int, length: int) -> Tensor:
    """Block `number` of a tensor; of what is temporary there is only one."""
    return blocks[number] if len(blocks) > 1 else blocks[0][:length]


def _add(left: Tensor, right: Tensor | None, out: Tensor) -> None:
    if right is None:
        out.copy_(left)
    else:
        torch.add(left, right, out=out)
