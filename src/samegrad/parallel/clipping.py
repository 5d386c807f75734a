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
        norms = {
            position: torch.linalg.vector_norm(parameter.grad)
            for position, parameter in enumerate(parameters)
            if parameter.grad is not None
        }
        if owned_by is not None:
            row = struct.pack(f"<{len(parameters)}d", *(float(norms.get(p, -1.0)) for p in range(len(parameters))))
            rows = [struct.unpack(f"<{len(parameters)}d", record) for record in group.gather(row, "clipping")]
            norms = {
                p: torch.tensor(rows[rank][p], dtype=parameters[p].dtype.to_real())
                for rank, held in enumerate(owned_by)
                for p in held
                if rows[rank][p] != -1.0
            }
        if not norms:
            return 0.0
        norm = torch.linalg.vector_norm(torch.stack([norms[position] for position in sorted(norms)]))
        factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
        if float(factor) != 1.0:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
    return float(norm)
