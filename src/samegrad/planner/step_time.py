"""From the times of computing and exchanging to that of a step. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from samegrad.planner.bucketing import Bucket
from samegrad.planner.workload import Workload
from samegrad.recipe import Recipe
from samegrad.shards import even, shares

__all__ = ["Computing", "Exchanged", "computing_of", "exchanged"]


@dataclass(frozen=True, slots=True)
class Computing:
    """Seconds that the device with most examples computes; `last_backward_s` of them is backward of its last shard,
    which makes the gradients of the device complete."""

    seconds: float
    last_backward_s: float


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Seconds of all exchanges, and of what is left of them when computing has ended."""

    seconds: float
    exposed_s: float


def computing_of(workload: Workload, recipe: Recipe, devices: int) -> Computing:
    """What `devices` equally fast devices compute that share out the shards of `recipe`; time goes by examples.

    Raises ConfigurationError if there are fewer shards than devices.
    """
    sizes = [len(part) for part in even(recipe.batch_size, recipe.shards)]
    held = shares(recipe.shards, devices)
    examples, last = max((sum(sizes[shard] for shard in part), sizes[part[-1]]) for part in held)
    return Computing(
        workload.step_s * examples / workload.batch,
        workload.backward_s * last / workload.batch,
    )


def exchanged(
    computing: Computing, buckets: Sequence[Bucket], seconds_of: Callable[[float], float], overlap: bool
) -> Exchanged:
    """Exchanges one bucket after the other, each when it is ready, or, without `overlap`, when all computing is done.

    seconds_of: the seconds of an exchange of so many bytes.
    """
    seconds = [seconds_of(bucket.nbytes) for bucket in buckets]
    total = sum(seconds)
    if not overlap:
        return Exchanged(total, total)
    end = -computing.last_backward_s  # times are counted from the end of computing
    for bucket, its in zip(buckets, seconds, strict=True):
        end = max(end, -computing.last_backward_s * (1 - bucket.ready)) + its
    return Exchanged(total, min(max(end, 0.0), total))
