"""Pinned host memory: from there a copy to a CUDA device needs no second one, and the host does not wait for it."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["pinned", "wants_pinning"]


def wants_pinning(tensor: Tensor, device: torch.device) -> bool:
    """Whether `tensor` lies in ordinary host memory and goes to a CUDA `device`."""
    return (
        device.type == "cuda"
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_pinned()
    )


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor`, in pinned memory if it is on its way from the host to a CUDA `device`."""
    return tensor.pin_memory() if wants_pinning(tensor, device) else tensor
