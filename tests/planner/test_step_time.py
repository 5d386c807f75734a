"""Times of steps, by hand."""

from __future__ import annotations

import pytest
from tests.planner.works import one_gradient

from samegrad.errors import ConfigurationError
from samegrad.planner.bucketing import Bucket
from samegrad.planner.step_time import Computing, computing_of, exchanged
from samegrad.recipe import Recipe


@pytest.mark.parametrize(
    ("batch", "shards", "devices", "examples", "last"),
    [
        (256, 8, 1, 256, 32),
        (256, 8, 4, 64, 32),
        (256, 8, 3, 96, 32),  # 3 shards of 8
        (250, 8, 8, 32, 32),  # the first two shards have 32 examples, the others 31
        (7, 3, 3, 3, 3),
        (8, 8, 5, 2, 1),
    ],
)
def test_the_device_with_most_examples_counts(batch: int, shards: int, devices: int, examples: int, last: int) -> None:
    computing = computing_of(one_gradient(4, step_s=3.0, batch=100), Recipe(batch_size=batch, shards=shards), devices)
    assert computing.seconds == pytest.approx(3.0 * examples / 100)
    assert computing.last_backward_s == pytest.approx(2.0 * last / 100)


def test_more_devices_than_shards_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="--shards 5"):
        computing_of(one_gradient(4), Recipe(shards=4), 5)


# Computing ends at 100; backward of the last shard starts at 60.
@pytest.mark.parametrize(
    ("buckets", "exposed"),
    [
        ([(10, 1.0)], 10),
        ([(10, 0.5)], 0),  # from 80 to 90
        ([(30, 0.5)], 10),  # from 80 to 110
        ([(10, 0.5), (10, 1.0)], 10),  # to 90, from 100 to 110
        ([(30, 0.5), (10, 1.0)], 20),  # to 110, to 120
        ([(50, 0.0), (5, 0.1), (5, 1.0)], 20),  # from 60 on without a break
        ([(10, 0.0), (0, 1.0)], 0),
        ([], 0),
    ],
)
def test_a_bucket_goes_when_it_is_ready_and_the_one_before_is_done(
    buckets: list[tuple[int, float]], exposed: float
) -> None:
    made = [Bucket(*each) for each in buckets]
    found = exchanged(Computing(100, 40), made, lambda nbytes: nbytes, overlap=True)
    total = sum(nbytes for nbytes, _ in buckets)
    assert (found.seconds, found.exposed_s) == pytest.approx((total, exposed))
    found = exchanged(Computing(100, 40), made, lambda nbytes: nbytes, overlap=False)
    assert (found.seconds, found.exposed_s) == (total, total)
