"""Sums over ranks by the servers of a store, for what else is added up by a schedule between the ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from samegrad.errors import ConfigurationError
from samegrad.executors import Exchange, Group, Work
from samegrad.executors.base import FlatSizes, Request, Turns, check_request
from samegrad.kvstore.handles import Handle
from samegrad.kvstore.store import KVStore
from samegrad.recipe import Recipe
from samegrad.schedules.ir import Collective, Schedule

__all__ = ["StoreGroup", "check_store"]


def check_store(store: KVStore, rank: int, ranks: int, recipe: Recipe) -> None:
    """Raises ConfigurationError unless `store` does, for this rank of `ranks`, what `recipe` says: adds up what ranks
    have of its shards, or in another mode than "sync" has an updater."""
    job, mode, shards = store.job, recipe.consistency, recipe.shards
    expected = [("worker", store.worker, rank), ("workers", job.workers, ranks)]
    if mode == "sync":
        expected.append(("leaves", job.shards, shards))
    for name, found, wanted in expected:
        if found != wanted:
            raise ConfigurationError(
                f"store: expected {name} to be {wanted}, for rank {rank} of {ranks} and a recipe of {shards} shards; "
                f"got {found}. Connect with worker=(rank, ranks) and leaves=recipe.shards"
            )
    if mode != "sync":
        if (job.consistency.mode, job.consistency.staleness) != (mode, recipe.staleness):
            raise ConfigurationError(
                f"store: the recipe has consistency {mode!r} and staleness {recipe.staleness}; the store was connected "
                f"with mode {job.consistency.mode!r} and staleness {job.consistency.staleness}. Connect with the same"
            )
        return
    if not job.consistency.is_sync or job.updater is not None:
        raise ConfigurationError(
            f"store: a Trainer takes sums from it and updates the parameters itself, so that its result is that of any "
            f"way of adding up, where its recipe has consistency 'sync'; expected mode 'sync' without an updater, got "
            f"mode {job.consistency.mode!r} and "
            f"{'no updater' if job.updater is None else job.updater.name}"
        )


class StoreGroup:
    """The ranks of `group`, whose sums are those of the servers of `store`; they talk as before.

    numbers: of the exchanges, which name their keys.
    """

    def __init__(self, group: Group, store: KVStore, numbers: Iterator[int] | None = None) -> None:
        self.rank, self.size = group.rank, group.size
        self._group, self._store = group, store
        self._numbers = itertools.count() if numbers is None else numbers

    def gather(self, record: bytes, operation: str) -> list[bytes]:
        """See `Group`."""
        return self._group.gather(record, operation)

    def broadcast(self, tensors: Sequence[Tensor], operation: str, source: int = 0) -> None:
        """See `Group`."""
        self._group.broadcast(tensors, operation, source)

    def twin(self, operation: str) -> StoreGroup:
        """See `Group`. It is of the same store, in which keys are independent of each other."""
        return StoreGroup(self._group.twin(operation), self._store, self._numbers)

    def prepare(
        self, schedule: Schedule, sizes: FlatSizes, operation: str, out: Sequence[Tensor] | None = None
    ) -> Exchange:
        """See `Executor`. Of the schedule, the cut counts: who contributes what."""
        request = Request(sizes, operation, out)
        check_request(self._group, schedule, request)
        if schedule.collective is not Collective.ALL_REDUCE:
            raise ConfigurationError(
                f"{operation}: servers give every rank the whole sum; they do no {schedule.collective}"
            )
        return _StoreExchange(self._store, f"exchange {next(self._numbers)}", schedule, self.rank, request)


class _StoreExchange:
    """A sum whose contributions are pushed under one key for each flat buffer."""

    def __init__(self, store: KVStore, name: str, schedule: Schedule, rank: int, request: Request) -> None:
        self._store, self._request = store, request
        self._turns = Turns(request.operation)
        self._nodes = schedule.cut.nodes[rank]
        self._keys = [f"{name}, buffer {number}" for number in range(len(request.sizes))]
        self._slots = [[torch.empty(numel, dtype=dtype) for dtype, numel in request.sizes] for _ in self._nodes]
        self._result = [torch.empty(numel, dtype=dtype) for dtype, numel in request.sizes]
        store.init({key: torch.zeros_like(flat) for key, flat in zip(self._keys, self._result, strict=True)})

    def slot(self, position: int) -> list[Tensor]:
        """See `Exchange`."""
        self._turns.check_open()
        return self._slots[position]

    def start(self) -> Work:
        """See `Exchange`."""
        self._turns.start()
        out = self._request.out
        targets = self._result if out is None else list(out)
        contributions = list(zip(self._nodes, self._slots, strict=True))
        return _StoreWork(self._store.contribute(self._keys, contributions, targets), targets, self._turns)

    def close(self) -> None:
        """See `Exchange`. The servers forget the keys when all ranks have closed it."""
        self._turns.close()
        self._store.remove(self._keys)


class _StoreWork:
    """A push and pull on its way."""

    def __init__(self, handle: Handle, targets: list[Tensor], turns: Turns) -> None:
        self._handle, self._targets, self._turns = handle, targets, turns

    def wait(self) -> list[Tensor]:
        """See `Work`."""
        self._turns.wait()
        self._handle.wait()
        return self._targets
