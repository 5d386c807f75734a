"""What a worker's calls are given, checked: tensors for keys, and what to say of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor

from samegrad.errors import ConfigurationError, RequestRefused
from samegrad.kvstore.pieces import Entry

__all__ = ["checked_values", "listed", "named", "new_outs"]


@overload
def listed(values: Tensor) -> list[Tensor]: ...
@overload
def listed(values: Sequence[Tensor] | Tensor) -> Sequence[Tensor]: ...
def listed(values: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    """One tensor as a list; a list as it is."""
    return [values] if isinstance(values, Tensor) else values


def named(entries: Sequence[Entry]) -> str:
    """What a call is about, in words."""
    more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
    return f"key {entries[0].key!r}{more}, step {entries[0].step}" if entries else "no keys"


def checked_values(what: str, entries: Sequence[Entry], values: Sequence[Tensor]) -> Sequence[Tensor]:
    """`values`, one for each of `entries`. Raises ConfigurationError for another number of them, RequestRefused for
    another shape or dtype."""
    if len(values) != len(entries):
        raise ConfigurationError(f"{what}: got {len(values)} tensors for {len(entries)} keys")
    for entry, value in zip(entries, values, strict=True):
        if value.dtype is not entry.dtype or value.shape != entry.shape:
            raise RequestRefused(
                f"{what}: key {entry.key!r} holds {entry.dtype} of shape {list(entry.shape)}; got {value.dtype} of "
                f"shape {list(value.shape)}"
            )
    return values


def new_outs(what: str, entries: Sequence[Entry], out: Tensor | Sequence[Tensor] | None) -> list[Tensor]:
    """Where what is pulled is to be written: `out`, checked, or new tensors."""
    if out is None:
        return [torch.empty(entry.shape, dtype=entry.dtype) for entry in entries]
    return list(checked_values(what, entries, listed(out)))
