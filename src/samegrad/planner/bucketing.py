"""The buckets of a workload: their sizes, and when each is ready. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from samegrad.bucketing import buckets
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
    parts = buckets([gradient.nbytes for gradient in gradients], bucket_bytes)
    return tuple(Bucket(sum(gradients[at].nbytes for at in part), gradients[part[-1]].ready) for part in parts)
