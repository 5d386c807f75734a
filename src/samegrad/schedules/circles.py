"""Rings: every rank sends to the next one only. What `ring`, `two-way-ring`, `rings` and `two-way-rings` are made of.

In a ring over n ranks the buffer is cut into n chunks. In each round every rank sends one chunk to the next rank, which
adds it; after n - 1 rounds each rank has one chunk of the result. n - 1 more rounds carry these around.

Several rings share the buffer: each carries its own chunks, all at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from samegrad.errors import ConfigurationError
from samegrad.schedules.cut import Cut
from samegrad.schedules.ir import ChainedRounds, GeneratedRounds, Op, Round
from samegrad.schedules.phases import Phases, add_own_slots

__all__ = ["circling"]


def circling(name: str, cut: Cut, orders: Sequence[Sequence[int]], speeds: Sequence[int] | None = None) -> Phases:
    """A ring for each of `orders`, which carries a part of the buffer in proportion to its speed (equal if None)."""
    n, count = cut.ranks, len(orders)
    for order in orders:
        if sorted(order) != list(range(n)):
            raise ConfigurationError(f"{name}: a ring visits each of the ranks 0 to {n - 1} once; got {list(order)}")
    if not count or (speeds is not None and (len(speeds) != count or min(speeds) < 1)):
        raise ConfigurationError(f"{name}: {count} rings need as many speeds, at least 1 each; got {speeds}")
    ring, place = np.repeat(np.arange(count), n), np.tile(np.arange(n), count)  # a row for each ring and place in it
    rank = np.array(orders, dtype=np.int32).ravel()
    following = np.array([np.roll(order, -1) for order in orders], dtype=np.int32).ravel()
    first = ring * n  # the first chunk of the ring; the i-th ends at the i-th place

    def reduce(number: int) -> Round:
        return Round.of(rank, 0, following, 0, first + (place - number - 1) % n, Op.ADD)

    def spread(number: int) -> Round:
        return Round.of(rank, 0, following, 0, first + (place - number) % n, Op.COPY)

    weights = None if speeds is None else tuple(speed for speed in speeds for _ in range(n))
    own = add_own_slots(name, cut, count * n)
    around = GeneratedRounds(n - 1, reduce)
    return Phases(
        count * n, tuple(rank.tolist()), ChainedRounds([own, around]), GeneratedRounds(n - 1, spread), weights
    )
