"""Gradients in buckets that are exchanged one after the other, those of the last layers first.

Trainer, wrapper and planner cut the same buckets. A gradient is never cut, and they keep their order: that in which
backward makes them.

    parameters, in the order of the model       a 40   b 10   c 5   d 30 bytes
    gradients, as backward makes them           d 30   c 5   b 10   a 40
    buckets of at least 20 bytes              [ d ]  [ c   b   a ]
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["buckets", "usual_size"]

_SMALLEST, _LARGEST = 1 << 18, 1 << 22  # bytes
_PART = 16


def usual_size(nbytes: int) -> int:
    """Least size of a bucket where nothing is said, for gradients of `nbytes` that are exchanged during backward.

    What is exchanged after backward is the last bucket: on a slow link it takes a sixteenth of the time of all, at
    most. A message of less than 256 KiB costs as much for being a message as for its bytes, and 4 MiB are many enough.
    """
    return min(max(nbytes // _PART, _SMALLEST), _LARGEST)


def buckets(nbytes: Sequence[int], least: float | None) -> tuple[range, ...]:
    """Cuts gradients of `nbytes`, in the order in which backward makes them, into buckets of at least `least` bytes
    each, but for the last one; one for all if None. Returns the positions in each bucket; none for no gradients."""
    found, start, total = [], 0, 0
    for position, size in enumerate(nbytes):
        total += size
        if position == len(nbytes) - 1 or (least is not None and total >= least):
            found.append(range(start, position + 1))
            start, total = position + 1, 0
    return tuple(found)
