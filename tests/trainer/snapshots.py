"""States that checkpoints can be written of, without a training."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from samegrad.recipe import Recipe
from samegrad.trainer.checkpoint import Snapshot
from samegrad.trainer.position import Position

__all__ = ["snapshot_of"]


def snapshot_of(
    steps: int, weights: dict[str, Tensor], state: dict[str, Tensor] | None = None, **fields: Any
) -> Snapshot:
    """A state after so many steps. fields: further ones of the record."""
    record = {
        "samegrad_version": "0",
        "torch_version": "0",
        "recipe": Recipe().to_json(),
        "position": dataclasses.asdict(Position(steps=steps)),
        "optimizer": {},
        "remembered": {},
        "values": {},
        **fields,
    }
    return Snapshot(steps, weights, state or {}, record)
