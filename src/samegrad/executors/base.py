"""What executors offer to the layers above: groups of ranks to talk in, and schedules run on buffers.

An executor prepares an exchange: a schedule with buffers of fixed sizes, which belong to the library. As often as
wanted, every rank writes its contributions into its slots, starts, and waits for the result. Additions are those of
the schedule, so every executor gives the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from samegrad.errors import ConfigurationError
from samegrad.schedules.ir import Schedule
from samegrad.summation import as_real

__all__ = ["Exchange", "Executor", "FlatSizes", "Group", "Piece", "Work", "check_alike", "fill_absent"]

FlatSizes = Sequence[tuple[torch.dtype, int]]
"""Dtype and number of elements of each flat buffer."""

Piece = tuple[int, int, int]
"""(which flat buffer, start, stop): a range of elements."""


class Work(Protocol):
    """An exchange that has been started."""

    def wait(self) -> list[Tensor]:
        """Does what is left to do and returns this rank's result, one flat buffer for each of the sizes.

        It is `out` if that was given; else memory of the exchange, which keeps the result until a slot is asked for or
        the exchange starts again.
        """
        ...


class Exchange(Protocol):
    """A schedule on buffers, ready to run."""

    def slot(self, position: int) -> list[Tensor]:
        """The flat buffers for this rank's contribution number `position`; for one that is absent: `fill_absent`.

        To be asked for each time: waits, if need be, until every rank has read what stood there the last time.
        """
        ...

    def start(self) -> Work:
        """Says that all slots are filled. Every start is waited for before the next one."""
        ...

    def close(self) -> None:
        """Lets go of the buffers; results that were returned must not be used any more."""
        ...


class Executor(Protocol):
    """One way to run schedules."""

    def prepare(
        self, schedule: Schedule, sizes: FlatSizes, operation: str, out: Sequence[Tensor] | None = None
    ) -> Exchange:
        """An exchange by `schedule`, whose cut says what each rank contributes. All ranks call it alike.

        operation: what it is for, see `Group`. out: flat buffers of this rank to write its result to, each time.
        Raises ConfigurationError if schedule or sizes are not the same on all ranks.
        """
        ...


class Group(Executor, Protocol):
    """The ranks that train together, seen from one of them. Every method is called by all ranks in the same order.

    operation: what the exchange is for, in words for a person ("step 3 of epoch 0"); the same on every rank. Ranks that
        meet for different operations raise CallMismatch, all of them, instead of taking each other's data.
    """

    rank: int
    size: int

    def gather(self, record: bytes, operation: str) -> list[bytes]:
        """Every rank's `record` (of any length), by rank. Nobody returns before all have called it."""
        ...

    def broadcast(self, tensors: Sequence[Tensor], operation: str) -> None:
        """Overwrites `tensors` with those of rank 0, which must have the same dtypes and shapes."""
        ...


def fill_absent(flats: Sequence[Tensor]) -> None:
    """Fills a slot with what changes no sum: -0.0 (plus zero would make zero of -0.0), or 0 for integers."""
    for flat in flats:
        number = as_real(flat)
        number.fill_(-0.0 if number.is_floating_point() else 0)


def check_alike(group: Group, schedule: Schedule, sizes: FlatSizes, operation: str) -> None:
    """Raises ConfigurationError, on all ranks, unless all are about to run the same schedule on the same sizes; and if
    there are not as many ranks as in the schedule, or it is no sum of contributions."""
    own = {
        "schedule": f"{schedule.name}, {schedule.collective} over {schedule.ranks} ranks, {schedule.digest()[:16]}",
        "buffers": ", ".join(f"{numel} x {str(dtype).removeprefix('torch.')}" for dtype, numel in sizes),
    }
    records = [json.loads(record) for record in group.gather(json.dumps(own).encode(), operation)]
    for rank, record in enumerate(records):
        for what, text in record.items():
            if text != records[0][what]:
                raise ConfigurationError(
                    f"{operation}: the ranks do not agree on the {what}. Rank 0 has {records[0][what]}; rank {rank} "
                    f"has {text}. All ranks must make the same calls with the same options"
                )
    if schedule.ranks != group.size:
        raise ConfigurationError(
            f"{operation}: {schedule.name} is a schedule for {schedule.ranks} ranks, but the group has {group.size}"
        )
    if not schedule.collective.starts_with_leaves:
        raise ConfigurationError(
            f"{operation}: expected a schedule that adds contributions up; {schedule.name} is for {schedule.collective}"
        )
