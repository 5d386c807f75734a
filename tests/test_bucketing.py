"""Gradients in buckets."""

from __future__ import annotations

import pytest

from samegrad.bucketing import buckets, usual_size

SIZES = [4, 1, 1, 9, 1, 2]


@pytest.mark.parametrize(
    ("least", "parts"),
    [
        (None, [range(6)]),
        (100, [range(6)]),
        (1, [range(at, at + 1) for at in range(6)]),
        (4, [range(1), range(1, 4), range(4, 6)]),
        (5, [range(2), range(2, 4), range(4, 6)]),
    ],
)
def test_buckets(least: float | None, parts: list[range]) -> None:
    assert list(buckets(SIZES, least)) == parts


@pytest.mark.parametrize("least", [None, 1, 10])
def test_no_gradients_make_no_bucket(least: float | None) -> None:
    assert buckets([], least) == ()


def test_gradients_of_no_bytes_have_a_place() -> None:
    assert buckets([0, 0, 5, 0], 3) == (range(3), range(3, 4))


@pytest.mark.parametrize("least", [0.5, 2, 3, 7, 17.9, 18, 19])
def test_all_but_the_last_are_large_enough_and_nothing_is_lost(least: float) -> None:
    parts = buckets(SIZES, least)
    assert [at for part in parts for at in part] == list(range(len(SIZES)))
    assert all(sum(SIZES[at] for at in part) >= least for part in parts[:-1])


@pytest.mark.parametrize(
    ("nbytes", "least"), [(0, 1 << 18), (1 << 20, 1 << 18), (16_000_000, 1_000_000), (1 << 30, 1 << 22)]
)
def test_the_usual_size_is_a_sixteenth_within_bounds(nbytes: int, least: int) -> None:
    assert usual_size(nbytes) == least
