"""Who has come to which barrier of a store. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from samegrad.kvstore.messages import Barrier

__all__ = ["Barriers"]


class Barriers:
    """The barriers of `workers` workers that are not passed; a worker may have come to several."""

    def __init__(self, workers: int) -> None:
        self._waiting: list[deque[Barrier]] = [deque() for _ in range(workers)]

    @property
    def come_to(self) -> list[int]:
        """The workers that wait at one."""
        return [worker for worker, barriers in enumerate(self._waiting) if barriers]

    def come(self, worker: int, barrier: Barrier) -> None:
        """`worker` has come to another one."""
        self._waiting[worker].append(barrier)

    def passed(self, present: Sequence[int]) -> list[tuple[int, Barrier]]:
        """Each worker's first barrier, as often as all of those `present` have one: it is passed."""
        found: list[tuple[int, Barrier]] = []
        while present and all(self._waiting[worker] for worker in present):
            found += [(worker, self._waiting[worker].popleft()) for worker in present]
        return found
