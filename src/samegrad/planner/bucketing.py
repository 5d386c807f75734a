"""Gradients in buckets that are exchanged one after the other, last layers first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from samegrad.planner.workload import Gradient

__all__ = ["Bucket", "bucketing"]


class Bucket(NamedTuple):
    """Bytes, and when the last of its gradients is ready, as a fraction of backward."""

    nbytes: int
    ready: float


def bucketing(gradients: Sequence[Gradient], bucket_bytes: float | None) -> tuple[Bucket, ...]:
    """Buckets of at least `bucket_bytes` each, but for the last one; one for all if None.

    A gradient is never cut, and they keep their order: that in which backward makes them.
    """
    found, nbytes = [], 0
    for number, gradient in enumerate(gradients, start=1):
        nbytes += gradient.nbytes
        if number == len(gradients) or (bucket_bytes is not None and nbytes >= bucket_bytes):
            found.append(Bucket(nbytes, gradient.ready))
            nbytes = 0
    return tuple(found)
