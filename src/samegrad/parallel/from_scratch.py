"""Data-parallel training from its parts, in one process: for who wants to see every step, or to build another way.

A plain list of devices (the same one twice is fine), a plain list of parameters for each, and a list of gradients that
`allreduce` adds up. `examples/from_scratch.py` trains with them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samegrad.errors import ConfigurationError
from samegrad.machine import usable_cores
from samegrad.parallel.layout import aligned
from samegrad.parallel.nested import count_examples, cut, map_tensors
from samegrad.shards import even
from samegrad.workers import parse_devices

__all__ = ["devices", "replicate_parameters", "split_batch"]


def devices(spec: str | int | Sequence[str] = "auto") -> list[torch.device]:
    """The devices meant by `spec` ("auto", 2, "cpu:2", "cuda:0,cuda:1"), one for each part of a batch."""
    names = parse_devices(spec, cuda=torch.cuda.device_count(), cores=usable_cores())
    return [torch.device(name) for name in names]


def replicate_parameters(parameters: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """Copies of `parameters` on `device`, as leaves that collect gradients."""
    return [parameter.detach().to(device, copy=True).requires_grad_() for parameter in parameters]


def split_batch(X: Any, y: Any, devices: Sequence[torch.device | str]) -> tuple[list[Any], list[Any]]:
    """Cuts X and y (tensors, or any structure of tensors) into one part for each device, and moves them there.

    The parts are contiguous and differ by one example at most; with fewer examples than devices the last are empty.
    """
    if not devices:
        raise ConfigurationError("split_batch: no devices were given")
    total = count_examples((X, y))
    parts = []
    for rows, device in zip(even(total, len(devices)), devices, strict=True):
        move = functools.partial(_move, device=torch.device(device))
        parts.append(map_tensors(move, cut((X, y), rows, total)))
    return [part[0] for part in parts], [part[1] for part in parts]


def _move(tensor: Tensor, device: torch.device) -> Tensor:
    return aligned(tensor).to(device)
