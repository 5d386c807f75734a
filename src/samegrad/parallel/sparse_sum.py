"""Sums over ranks of gradients that are no flat buffers: those of embeddings with `sparse=True`, mostly.

Each rank shows the others the rows that it has, none at all included; all add them up along the tree.
"""

from __future__ import annotations

import io
import struct

import torch
from torch import Tensor

from samegrad.executors import Group

__all__ = ["gathered_sum"]

_HEADER = struct.Struct("<bqq")  # sparse dimensions, 0 for a dense gradient, -1 for none; rows; bytes of all values


def gathered_sum(group: Group, own: Tensor | None, like: Tensor, operation: str) -> Tensor | None:
    """The sum over ranks of `own`, a sparse (COO) or dense gradient of the parameter `like`; None if no rank has one.

    It is sparse if all are, with each row once, and has the same bits on all ranks.
    """
    found = [_unpacked(record, like) for record in group.gather(_packed(own), operation)]
    while len(found) > 1:
        pairs = zip(found[::2], [*found[1::2], None], strict=False)
        found = [_added(left, right) for left, right in pairs]
    return found[0]


def _added(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    if left.is_sparse != right.is_sparse:
        left, right = left.to_dense(), right.to_dense()
    total = left + right
    return total.coalesce() if total.is_sparse else total


def _packed(own: Tensor | None) -> bytes:
    if own is None:
        return _HEADER.pack(-1, 0, 0)
    if not own.is_sparse:
        values = _bytes(own)
        return _HEADER.pack(0, 0, len(values)) + values
    own = own.coalesce()
    indices, values = _bytes(own.indices()), _bytes(own.values())
    return _HEADER.pack(own.sparse_dim(), own.indices().shape[1], len(values)) + values + indices


def _unpacked(record: bytes, like: Tensor) -> Tensor | None:
    dimensions, rows, length = _HEADER.unpack_from(record)
    if dimensions < 0:
        return None
    stream = io.BytesIO(record[_HEADER.size :])
    values = _tensor(stream.read(length), like.dtype).to(like.device)
    if dimensions == 0:
        return values.view(like.shape)
    indices = _tensor(stream.read(), torch.int64).to(like.device).view(dimensions, rows)
    values = values.view(rows, *like.shape[dimensions:])
    return torch.sparse_coo_tensor(indices, values, like.shape, check_invariants=False, is_coalesced=True)


def _bytes(tensor: Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def _tensor(raw: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
