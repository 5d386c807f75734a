"""Buckets of gradients."""

from __future__ import annotations

import pytest

from samegrad.planner import Bucket, Gradient, bucketing

GRADIENTS = [Gradient(f"w{place}", nbytes, place / 5) for place, nbytes in enumerate([4, 1, 1, 9, 1, 2], start=0)]


@pytest.mark.parametrize(
    ("size", "buckets"),
    [
        (None, [Bucket(18, 1.0)]),
        (100, [Bucket(18, 1.0)]),
        (1, [Bucket(each.nbytes, each.ready) for each in GRADIENTS]),
        (4, [Bucket(4, 0), Bucket(11, 0.6), Bucket(3, 1)]),
        (5, [Bucket(5, 0.2), Bucket(10, 0.6), Bucket(3, 1)]),
    ],
)
def test_buckets(size: float | None, buckets: list[Bucket]) -> None:
    assert list(bucketing(GRADIENTS, size)) == buckets


@pytest.mark.parametrize("size", [0.5, 2, 3, 7, 17.9, 18, 19])
def test_nothing_is_lost_and_all_but_the_last_are_large_enough(size: float) -> None:
    made = bucketing(GRADIENTS, size)
    assert sum(each.nbytes for each in made) == 18
    assert all(each.nbytes >= size for each in made[:-1])
    assert [each.ready for each in made] == sorted(each.ready for each in made)
