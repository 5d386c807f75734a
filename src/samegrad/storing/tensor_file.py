"""Tensors as a safetensors file, in pieces that need no second copy of them, and back.

    8 bytes    length of the header, little-endian
    header     JSON: name -> {"dtype", "shape", "data_offsets"}, padded with blanks to a multiple of 8
    data       the tensors, row by row, those with the largest elements first, so that all lie aligned

The format: https://huggingface.co/docs/safetensors. `safetensors` itself makes one `bytes` of everything before it
writes; a checkpoint of several GB would need that much memory again.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from samegrad.errors import ConfigurationError
from samegrad.storing.packing import Put

__all__ = ["putting", "tensor_pieces", "tensors_in"]

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


def tensor_pieces(tensors: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    """The bytes of a safetensors file of `tensors` (contiguous, on the CPU); the pieces are views of them."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    pieces: list[bytes | memoryview] = []
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        if tensor.dtype not in _NAMES:
            raise ConfigurationError(f"a checkpoint cannot hold {name}: safetensors knows no {tensor.dtype}")
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        if tensor.nbytes:
            pieces.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)) + text, *pieces]


def tensors_in(path: Path) -> dict[str, Tensor]:
    """The tensors of the safetensors file at `path`, as views of it."""
    return safetensors.torch.load_file(path)


def putting(tensors: dict[str, Tensor]) -> Put:
    """Puts tensors into `tensors`, as they are, under names of their own."""

    def put(where: str, value: object) -> str | None:
        if not isinstance(value, Tensor):
            return None
        name = where
        while name in tensors:
            name += "'"
        tensors[name] = value
        return name

    return put
