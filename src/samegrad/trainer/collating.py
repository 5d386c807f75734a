"""Putting examples together into one batch, and saying which of them do not fit together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils.collate import collate as torch_collate
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from samegrad.errors import DataError
from samegrad.parallel.nested import leaves

__all__ = ["collate", "described", "listed"]

_SHOWN = 10  # indices
_WIDTH = 200  # characters that tell of one example


def collate(examples: Sequence[Any], indices: Sequence[int], where: str) -> Any:
    """`examples` as one batch, as torch's `default_collate` makes it; each tensor gets one row per example.

    Raises DataError, which begins with `where` and names two of the `indices` and their shapes, if they do not fit.
    """
    try:
        return torch_collate(list(examples), collate_fn_map={**default_collate_fn_map, Tensor: _stack})
    except Exception as error:
        raise DataError(
            f"{where}: the examples {listed(indices)} cannot be put into one batch: {_difference(examples, indices)} "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}). Give all examples the same "
            f"structure and shapes, by padding or cropping in the data set"
        ) from error


def listed(indices: Sequence[int]) -> str:
    """The first of `indices`, for people."""
    return ", ".join(map(str, indices[:_SHOWN])) + (", ..." if len(indices) > _SHOWN else "")


def _stack(tensors: Sequence[Tensor], *, collate_fn_map: Any) -> Tensor:
    """As torch does it outside of loader workers; in them it would take file descriptors for each tensor."""
    if tensors[0].is_nested or tensors[0].layout is not torch.strided:
        collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)  # which says that it cannot
    return torch.stack(list(tensors))


def _difference(examples: Sequence[Any], indices: Sequence[int]) -> str:
    if not examples:
        return "there are none"
    first = described(examples[0])
    for index, example in zip(indices, examples, strict=True):
        if (text := described(example)) != first:
            return f"example {indices[0]} is {first[:_WIDTH]}, but example {index} is {text[:_WIDTH]}"
    return f"each is {first[:_WIDTH]}"


def described(example: Any) -> str:
    """Where an example, or a batch, has what: "X [3, 8, 8] float32, y int"."""
    is_pair = isinstance(example, tuple | list) and len(example) == 2
    names = {"[0]": "X", "[1]": "y"} if is_pair else {}
    found = (f"{names.get(path[:3], path[:3])}{path[3:]} {_kind(leaf)}" for path, leaf in leaves(example))
    return ", ".join(found).strip()


def _kind(leaf: Any) -> str:
    if isinstance(leaf, Tensor) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        return f"{list(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"
    return type(leaf).__name__
