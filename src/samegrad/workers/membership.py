"""Whether this process belongs to a job that another launcher has started, and what it then knows of it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from samegrad.errors import ConfigurationError
from samegrad.workers.context import WorkerContext, context, encoded
from samegrad.workers.neighbours import ProcessWatch
from samegrad.workers.stopping import StopSwitch
from samegrad.workers.variables import Place, attempt

__all__ = [
    "JoinedContext",
    "Listeners",
    "has_process_group",
    "is_member",
    "own_attempt",
    "place_in_group",
    "place_in_job",
]


@dataclass(slots=True)
class Listeners:
    """Who hears of reports, and who may ask to stop, while `launch` runs a function in this process."""

    on_report: Callable[[dict[str, Any]], None] | None = None
    stop: StopSwitch | None = None

    def report(self, record: dict[str, Any]) -> None:
        """See `context.report`."""
        text = encoded(record)
        if self.on_report is not None:
            self.on_report(json.loads(text))

    @contextlib.contextmanager
    def replaced_by(self, others: Listeners) -> Iterator[None]:
        """Within, `others` listen."""
        before = self.on_report, self.stop
        self.on_report, self.stop = others.on_report, others.stop
        try:
            yield
        finally:
            self.on_report, self.stop = before


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedContext(WorkerContext):
    """The context of a process that another launcher has started; `memory_fd` is -1 if ranks cannot share memory.

    store: of torch.distributed, with keys of samegrad's own; None if there is one rank only.
    identities: by rank, what tells its device from all other devices.
    address: of this process, for the others.
    """

    store: Any
    identities: tuple[str, ...]
    watch: ProcessWatch
    address: str = "127.0.0.1"
    listeners: Listeners = field(default_factory=Listeners)

    @property
    def own_devices(self) -> bool:
        """Whether no two ranks have the same device."""
        return len(set(self.identities)) == len(self.identities)

    def has_left(self, rank: int) -> bool:
        """Whether the process of `rank` has ended."""
        return self.watch.has_ended(rank)

    def is_to_stop(self) -> bool:
        """Whether the switch that was given to `launch` is set."""
        return self.listeners.stop is not None and self.listeners.stop.is_set


def place_in_job() -> Place | None:
    """The place of this process in the job of a launcher, by the environment; see `Place.read`."""
    return Place.read(os.environ)


def own_attempt() -> str:
    """What tells this start of the job from its other starts, by the environment; see `variables.attempt`."""
    return attempt(os.environ)


def is_member() -> bool:
    """Whether this process belongs to a job that another launcher has started, or in which it has a process group."""
    return isinstance(context(), JoinedContext) or (
        context() is None and (has_process_group() or place_in_job() is not None)
    )


def has_process_group() -> bool:
    """Whether the caller has initialized a process group of torch.distributed."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def place_in_group(told: Place | None) -> Place:
    """The place of this process in the process group that the caller has initialized."""
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    if told is not None and (told.rank, told.size) != (rank, size):
        raise ConfigurationError(
            f"RANK is {told.rank} and WORLD_SIZE {told.size}, but in the process group of torch.distributed that is "
            f"initialized, this process is rank {rank} of {size}. Initialize it with all ranks of the job, or unset "
            f"the variables"
        )
    return Place(rank, size, 0 if told is None else told.local_rank, "", 0)
