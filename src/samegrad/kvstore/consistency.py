"""How far workers may run apart, and who may read a value when. Pure: a state machine without torch, clocks or I/O.

A worker's clock for a key is the number of its pushes to that key. Keys are independent of each other. A worker at
clock c that pulls a key waits until

    sync       all workers have pushed c times (bulk-synchronous): it gets the sum over exactly these pushes;
    stale, s   no worker is more than s pushes behind it: clock >= c - s for all (stale synchronous parallel, Ho et al.,
               NeurIPS 2013);
    async      its own pushes are in; it waits for nobody else.

A worker that has left is waited for no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from samegrad.errors import ConfigurationError, RequestRefused

__all__ = ["AHEAD", "MODES", "Clocks", "Consistency", "Mode"]

Mode = Literal["sync", "stale", "async"]
MODES: tuple[Mode, ...] = get_args(Mode)

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

    @property
    def slowest(self) -> int:
        """The smallest clock of those that are there; the largest of all if none is."""
        present = [count for worker, count in enumerate(self.counts) if worker not in self._left]
        return min(present) if present else max(self.counts)

    def check_push(self, worker: int, step: int) -> None:
        """Raises RequestRefused if push number `step` of `worker` cannot be: the one before it is missing, or it is too
        far ahead."""
        at = self.counts[worker]
        if step > at + 1:
            raise RequestRefused(f"push {step} of worker {worker} came, but its push {at + 1} did not; it is lost")
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
        bound = step - self._consistency.staleness
        return self.counts[worker] >= step and (self._consistency.mode == "async" or self.slowest >= bound)

    def late(self, worker: int, step: int) -> list[int]:
        """Who has not pushed what `worker`, at clock `step`, must wait for."""
        if self._consistency.mode == "async":
            return []
        bound = step - self._consistency.staleness
        return [other for other, at in enumerate(self.counts) if at < bound and other not in self._left | {worker}]

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
        self.counts = list(counts)
        self.completed = counts[0] if self._consistency.is_sync else 0

    def leave(self, worker: int) -> None:
        """`worker` pushes and pulls no more."""
        self._left.add(worker)
