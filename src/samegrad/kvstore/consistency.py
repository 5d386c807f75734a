"""How far workers may run apart, and who may read a value when. Pure: a state machine without torch, clocks or I/O.

A worker's clock for a key is the number of its pushes to that key. Keys are independent of each other. A worker at
clock c that pulls a key waits until

    sync       all workers have pushed c times (bulk-synchronous): it gets the sum over exactly these pushes;
    stale, s   no worker is more than s pushes behind it: clock >= c - s for all (stale synchronous parallel, Ho et al.,
               NeurIPS 2013);
    async      its own pushes are in; it waits for nobody else.

A worker that has left is waited for no more; nor, in stale, one that waits at a barrier. When that is passed, all are
taken to be as far as each other, and differ by what they push from there on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from samegrad.errors import ConfigurationError, RequestRefused
from samegrad.recipe import MODES, Mode

__all__ = ["AHEAD", "Clocks", "Consistency"]

AHEAD = 8
"""How many pushes to a key a worker may be ahead of the last sum that is complete, in sync: a server keeps them."""


@dataclass(frozen=True, slots=True)
class Consistency:
    """A mode; and for `stale`, by how many pushes workers may differ."""

    mode: Mode = "sync"
    staleness: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigurationError(f"store: mode must be one of {', '.join(MODES)}; got {self.mode!r}")
        bound = self.staleness
        if not isinstance(bound, int) or isinstance(bound, bool) or not 0 <= bound <= 1 << 32:
            raise ConfigurationError(f"store: staleness must be a whole number of at least 0; got {bound!r}")
        if bound and self.mode != "stale":
            raise ConfigurationError(f"store: staleness is for mode 'stale'; mode {self.mode!r} takes none")

    @property
    def is_sync(self) -> bool:
        """Whether pushes are added up by steps; else each is applied as it comes."""
        return self.mode == "sync"

    def to_json(self) -> dict[str, Any]:
        return {"mode": self.mode, "staleness": self.staleness}


class Clocks:
    """The clocks of `workers` workers for one key.

    counts: of each worker. completed: the pushes of all that are summed up, in sync.
    """

    def __init__(self, consistency: Consistency, workers: int) -> None:
        self._consistency = consistency
        self.counts = [0] * workers
        self.completed = 0
        self._pulled = [0] * workers
        self._left: set[int] = set()
        self._base = [0] * workers  # the counts at the last barrier
        self._come: list[deque[int]] = [deque() for _ in range(workers)]  # counts on arrival at the next ones

    def lag(self, worker: int, step: int) -> int:
        """By how much the slowest of those that are waited for is behind `worker` at clock `step`; 0 if none is."""
        ahead = step - self._base[worker]
        found = [ahead - (self.counts[other] - self._base[other]) for other in self._waited_for()]
        return max([0, *found])

    def _waited_for(self) -> list[int]:
        come = {worker for worker, counts in enumerate(self._come) if counts and counts[0] == self.counts[worker]}
        return [worker for worker in range(len(self.counts)) if worker not in self._left | come]

    def come(self, worker: int) -> None:
        """`worker` has come to a barrier."""
        self._come[worker].append(self.counts[worker])

    def go(self, worker: int) -> None:
        """`worker` has passed the first barrier that it has come to."""
        self._base[worker] = self._come[worker].popleft() if self._come[worker] else 0

    def check_push(self, worker: int, step: int) -> None:
        """Raises RequestRefused if push number `step` of `worker` cannot be: the one before it is missing, or it is too
        far ahead."""
        at = self.counts[worker]
        if step > at + 1:
            raise RequestRefused(
                f"push {step} of worker {worker} came, but its push {at + 1} did not, or was refused, as one is that "
                f"is more than {AHEAD} ahead of another worker; wait for its handle, which tells"
            )
        if self._consistency.is_sync and step > self.completed + AHEAD:
            raise RequestRefused(
                f"push {step} of worker {worker} is {step - self.completed} ahead of the last one that all workers "
                f"have made ({self.completed}); at most {AHEAD} are kept. Pull, and wait for it, before pushing on"
            )

    def push(self, worker: int, step: int) -> bool:
        """Notes push number `step` (from 1) of `worker`, which can be; in sync it may come in several contributions.

        False: it has counted before.
        """
        at = self.counts[worker]
        if step <= (self.completed if self._consistency.is_sync else at):
            return False
        self.counts[worker] = max(at, step)
        return True

    def check_pull(self, worker: int, step: int) -> None:
        """Raises RequestRefused if `worker` pulls at clock `step`, and its clock has run back."""
        if step < self._pulled[worker]:
            raise RequestRefused(
                f"worker {worker} pulls at clock {step} after it has pulled at clock {self._pulled[worker]}; clocks "
                f"never run back. Are there two workers of that number?"
            )

    def pull(self, worker: int, step: int) -> None:
        """Notes that `worker`, at clock `step`, wants the value."""
        self._pulled[worker] = step

    def complete(self, step: int) -> None:
        """In sync: push `step` of all workers is summed up. Steps are completed one after the other."""
        assert step == self.completed + 1, (step, self.completed)
        self.completed = step

    def may_read(self, worker: int, step: int) -> bool:
        """Whether `worker`, at clock `step`, may read the value now."""
        if self._consistency.is_sync:
            return self.completed >= step
        is_near = self._consistency.mode == "async" or self.lag(worker, step) <= self._consistency.staleness
        return self.counts[worker] >= step and is_near

    def late(self, worker: int, step: int) -> list[int]:
        """Who has not pushed what `worker`, at clock `step`, must wait for."""
        if self._consistency.mode == "async":
            return []
        if self._consistency.is_sync:
            return [other for other in self._waited_for() if self.counts[other] < step]
        least = step - self._base[worker] - self._consistency.staleness
        return [other for other in self._waited_for() if self.counts[other] - self._base[other] < least]

    @property
    def is_used(self) -> bool:
        """Whether anything was pushed."""
        return any(self.counts)

    def kept(self) -> list[int]:
        """What is kept of them: in sync, how many steps are complete; else the count of each worker."""
        return [self.completed] if self._consistency.is_sync else list(self.counts)

    def restore(self, counts: object) -> None:
        """Begins with a count for each worker, of a job that goes on. Raises RequestRefused for what cannot be."""
        if not (
            isinstance(counts, list)
            and len(counts) == len(self.counts)
            and all(type(count) is int and 0 <= count < 1 << 63 for count in counts)
            and (len(set(counts)) == 1 or not self._consistency.is_sync)
        ):
            raise RequestRefused(f"expected a clock for each of {len(self.counts)} workers; got {str(counts)[:80]}")
        self.counts, self._base = list(counts), list(counts)
        self.completed = counts[0] if self._consistency.is_sync else 0

    def leave(self, worker: int) -> None:
        """`worker` pushes and pulls no more."""
        self._left.add(worker)
