"""Clipping by the global norm, with the same bits whether one rank updates a parameter or all do."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from samegrad.executors import Group

__all__ = ["clip_gradients"]


def clip_gradients(
    parameters: Sequence[Tensor], limit: float, group: Group, owned_by: Sequence[Sequence[int]] | None = None
) -> float:
    """Scales the gradients so that their norm over all `parameters` is at most `limit`; returns the norm before.

    As `torch.nn.utils.clip_grad_norm_`: the norm of the norms of the gradients in the order of the parameters. With
    `owned_by` (each rank's positions) a rank has only the gradients of its own, and learns the other norms.
    """
    with torch.no_grad():
        own = {
            position: float(torch.linalg.vector_norm(parameter.grad))
            for position, parameter in enumerate(parameters)
            if parameter.grad is not None
        }
        if owned_by is not None:
            row = struct.pack(f"<{len(parameters)}d", *(own.get(p, -1.0) for p in range(len(parameters))))
            rows = [struct.unpack(f"<{len(parameters)}d", record) for record in group.gather(row)]
            own = {p: rows[rank][p] for rank, held in enumerate(owned_by) for p in held if rows[rank][p] >= 0}
        norm = float(torch.linalg.vector_norm(torch.tensor([own[position] for position in sorted(own)])))
        factor = min(limit / (norm + 1e-6), 1.0)
        if factor < 1.0:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
    return norm
