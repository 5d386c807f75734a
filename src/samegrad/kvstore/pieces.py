"""The slices of a worker's keys, how they are put into messages, and the memory that they come from and go to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from samegrad.kvstore.handles import Handle
from samegrad.kvstore.placement import Key

__all__ = ["Entry", "Piece", "await_last", "await_ready", "flat", "frames_of", "is_plain", "parts_of", "target_of"]

_TOGETHER = 1 << 20
"""Bytes of small slices that are sent in one message: one is on its way while the next one is made."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice of a key: elements [start, stop), which `server` knows by `number`."""

    server: int
    number: int
    start: int
    stop: int


@dataclass(slots=True)
class Entry:
    """What a worker knows of a key. ready: done when all workers have initialised it. step: its pushes so far.

    last: what was begun last, with its priority: what comes after it must not overtake it.
    """

    key: Key
    dtype: torch.dtype
    shape: torch.Size
    pieces: list[Piece]
    ready: Handle | None = None
    step: int = 0
    last: tuple[Handle, float] | None = None


def is_plain(tensor: Tensor) -> bool:
    """Whether its elements lie one after the other in memory of the host."""
    return tensor.is_cpu and tensor.is_contiguous()


def flat(value: Tensor) -> Tensor:
    """The elements of `value`, one after the other, in memory of the host; its own memory if it is so already."""
    value = value.detach() if value.requires_grad else value
    value = value if is_plain(value) else value.cpu().contiguous()
    return value if value.dim() == 1 else value.view(-1)


def target_of(out: Tensor) -> Tensor:
    """Flat memory of the host to receive `out` into; its own if that can be."""
    out = out.detach() if out.requires_grad else out
    if not is_plain(out):
        return torch.empty(out.numel(), dtype=out.dtype)
    return out if out.dim() == 1 else out.view(-1)


def parts_of(flats: Sequence[Tensor], group: Sequence[tuple[int, Piece]]) -> list[Tensor]:
    """What the slices in `group` are of the flat values at their positions."""
    parts = []
    for at, piece in group:
        whole = flats[at]
        is_part = piece.start or piece.stop != whole.numel()
        parts.append(whole[piece.start : piece.stop] if is_part else whole)
    return parts


def frames_of(entries: Sequence[Entry]) -> list[tuple[int, list[tuple[int, Piece]]]]:
    """The slices of all entries, with the positions of these, by server, in messages; small ones together."""
    frames: list[tuple[int, list[tuple[int, Piece]]]] = []
    filled: dict[int, tuple[list[tuple[int, Piece]], int]] = {}
    for at, entry in enumerate(entries):
        itemsize = entry.dtype.itemsize
        for piece in entry.pieces:
            group, nbytes = filled.get(piece.server, ([], 0))
            if not group or nbytes + (piece.stop - piece.start) * itemsize > _TOGETHER:
                group, nbytes = [], 0
                frames.append((piece.server, group))
            group.append((at, piece))
            filled[piece.server] = (group, nbytes + (piece.stop - piece.start) * itemsize)
    return frames


def await_ready(entries: Sequence[Entry]) -> None:
    """Waits until all workers have initialised `entries`."""
    for entry in entries:
        if entry.ready is not None:
            entry.ready.wait()
            entry.ready = None


def await_last(entries: Iterable[Entry]) -> None:
    """Waits until what was begun about `entries` is done."""
    for entry in entries:
        if entry.last is not None and not entry.last[0].is_done:
            entry.last[0].wait()
