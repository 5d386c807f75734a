"""A schedule on a plain list of tensors, in one process: the obvious way to run one, which all others must equal.

Every cell is a tensor of its own on the device of its rank. Rounds are run one after the other, transfers in listed
order; where a round overwrites what it also reads, what it reads is copied first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samegrad.errors import ConfigurationError
from samegrad.schedules.ir import Cell, Op, Round, Schedule
from samegrad.summation import as_real

__all__ = ["run_on_tensors"]


def run_on_tensors(schedule: Schedule, held: Sequence[Sequence[Tensor]], device: torch.device | None = None) -> None:
    """Runs `schedule` on `held`: by rank, one flat tensor for each of its slots that holds something; in place.

    A rank that holds none, and only gets or adds something, works on `device` (the CPU if None).
    Raises ConfigurationError unless all tensors are flat, of one dtype and size, and as many as the schedule expects.
    """
    expected = [len(nodes) for nodes in schedule.cut.nodes]
    found = [len(tensors) for tensors in held]
    if found != expected:
        raise ConfigurationError(f"{schedule.name}: ranks hold {expected} buffers by its cut; got {found}")
    kinds = {(tuple(tensor.shape), tensor.dtype) for tensors in held for tensor in tensors}
    shape = next(iter(kinds))[0] if len(kinds) == 1 else ()
    if len(shape) != 1:
        texts = ", ".join(f"{list(shape)} {dtype}" for shape, dtype in sorted(kinds, key=str))
        raise ConfigurationError(f"{schedule.name}: all buffers must be flat and of one size and dtype; got {texts}")
    ranges = schedule.ranges(shape[0])
    cells = {
        Cell(rank, slot, chunk): as_real(tensor[part.start : part.stop])
        for rank, tensors in enumerate(held)
        for slot, tensor in enumerate(tensors)
        for chunk, part in enumerate(ranges)
    }
    homes = [tensors[0].device if tensors else device or torch.device("cpu") for tensors in held]
    for each in schedule.rounds:
        _run_round(each, cells, homes)


def _run_round(each: Round, cells: dict[Cell, Tensor], homes: Sequence[torch.device]) -> None:
    moves = list(each)
    overwritten = {move.written for move in moves}
    kept = {cell: cells[cell].clone() for cell in {move.read for move in moves} & overwritten}
    for move in moves:
        source = kept.get(move.read, cells[move.read])
        home = homes[move.target]
        if move.op is Op.ADD:
            cells[move.written].add_(source.to(home, non_blocking=_in_order(source, home)))
        elif move.written in cells:
            cells[move.written].copy_(source, non_blocking=_in_order(source, home))
        else:
            cells[move.written] = source.to(home, copy=True, non_blocking=_in_order(source, home))


def _in_order(source: Tensor, home: torch.device) -> bool:
    """Whether a copy need not be waited for: between GPUs, whose streams see to the order. The CPU would not."""
    return source.device.type != "cpu" and home.type != "cpu"
