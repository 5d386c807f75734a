"""The fingerprint of a model: equal if and only if every bit of its state is equal."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["fingerprint"]


def fingerprint(model: nn.Module | Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal, over the `state_dict` of `model` (or over a state_dict) in its order.

    Of each tensor: its name, dtype, shape and bytes (row by row, little-endian). Extra state that is no tensor does
    not count.
    """
    state = model.state_dict() if isinstance(model, nn.Module) else model
    digest = hashlib.sha256()
    for name, value in state.items():
        if isinstance(value, Tensor):
            digest.update(f"{name}\n{str(value.dtype).removeprefix('torch.')}\n{list(value.shape)}\n".encode())
            digest.update(_little_endian(value))
    return digest.hexdigest()


def _little_endian(tensor: Tensor) -> memoryview:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    elements = plain.view(torch.uint8).numpy().reshape(-1, plain.element_size() or 1)
    if torch.tensor([1]).view(torch.uint8)[0] == 0:  # a big-endian machine
        elements = elements[:, ::-1]
    return np.ascontiguousarray(elements).data.cast("B") if elements.size else memoryview(b"")
