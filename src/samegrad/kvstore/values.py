"""How values lie in a payload: flat, one after the other, each filled up to whole 8 bytes; and their dtypes by name."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from samegrad.errors import RequestRefused

__all__ = ["DTYPES", "cut_payload", "padded"]

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}
"""The dtypes that can be added up, by name."""


def padded(nbytes: int) -> int:
    """The bytes that `nbytes` take in a payload, where every value is filled up to whole 8 bytes."""
    return (nbytes + 7) & ~7


def cut_payload(payload: Tensor, expected: Iterable[tuple[torch.dtype, int]]) -> list[Tensor]:
    """The flat values in `payload` (bytes), which `expected` describes. Raises RequestRefused for another length."""
    kinds = list(expected)
    needed = sum(padded(numel * dtype.itemsize) for dtype, numel in kinds)
    if payload.numel() != needed:
        raise RequestRefused(f"expected values of {needed} bytes in all; got {payload.numel()}")
    if len({dtype for dtype, _ in kinds}) == 1 and needed == sum(numel * dtype.itemsize for dtype, numel in kinds):
        return list(payload.view(kinds[0][0]).split([numel for _, numel in kinds]))
    values, start = [], 0
    for dtype, numel in kinds:
        nbytes = numel * dtype.itemsize
        values.append(payload[start : start + nbytes].view(dtype))
        start += padded(nbytes)
    return values
