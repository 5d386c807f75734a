"""Cuts for tests: all the shapes that training and users come up with."""

from __future__ import annotations

import random

from samegrad.schedules.cut import Cut
from samegrad.shards import shares

__all__ = ["cuts_of", "random_cut"]


def random_cut(ranks: int, leaves: int, seed: int, helpers: int = 0) -> Cut:
    """Contiguous ranges of at least one leaf each, anywhere."""
    stops = [*sorted(random.Random(seed).sample(range(1, leaves), ranks - 1)), leaves]
    starts = [0, *stops[:-1]]
    return Cut.of([range(start, stop) for start, stop in zip(starts, stops, strict=True)], leaves, helpers)


def cuts_of(ranks: int, helpers: int = 0) -> list[Cut]:
    """Equal leaves, the shares of eight or more shards, and two that are neither."""
    leaves = max(8, ranks)
    return [
        Cut.equal(ranks, helpers),
        Cut.of(shares(leaves, ranks), leaves, helpers),
        random_cut(ranks, leaves + 5, seed=1, helpers=helpers),
        random_cut(ranks, 2 * leaves + 1, seed=2, helpers=helpers),
    ]
