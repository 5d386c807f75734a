"""What executors offer to the layers above: groups of ranks to talk in, and schedules run on buffers.

An executor prepares an exchange: a schedule with buffers of fixed sizes, which belong to the library. As often as
wanted, every rank writes its contributions into its slots, starts, and waits for the result. Additions are those of
the schedule, so every executor gives the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from samegrad.errors import ConfigurationError
from samegrad.schedules.ir import Schedule
from samegrad.summation import ADDABLE, as_real

__all__ = [
    "Exchange",
    "Executor",
    "FlatSizes",
    "Group",
    "Piece",
    "Request",
    "Turns",
    "Work",
    "check_alike",
    "check_request",
    "fill_absent",
]

FlatSizes = Sequence[tuple[torch.dtype, int]]
"""Dtype and number of elements of each flat buffer."""

Piece = tuple[int, int, int]
"""(which flat buffer, start, stop): a range of elements."""


class Work(Protocol):
    """An exchange that has been started."""

    def wait(self) -> list[Tensor]:
        """Does what is left to do and returns this rank's result, one flat buffer for each of the sizes.

        It is `out` if that was given; else memory of the exchange, which keeps the result until a slot is asked for or
        the exchange starts again. Of a reduce-scatter only the chunks of this rank count; a rank without any gets
        nothing, an empty list.
        """
        ...


class Exchange(Protocol):
    """A schedule on buffers, ready to run."""

    def slot(self, position: int) -> list[Tensor]:
        """The flat buffers for this rank's contribution number `position`; for one that is absent: `fill_absent`.

        To be asked for each time, and filled: waits, if need be, until every rank has read what stood there the last
        time; and it may be other memory.
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

    def broadcast(self, tensors: Sequence[Tensor], operation: str, source: int = 0) -> None:
        """Overwrites `tensors` with those of rank `source`, which must have the same dtypes and shapes."""
        ...

    def twin(self, operation: str) -> Group:
        """The same ranks as a group of its own, so that two threads, or two users that know nothing of each other, can
        talk at the same time: each in its own group."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """What `Executor.prepare` was asked for, beside the schedule."""

    sizes: FlatSizes
    operation: str
    out: Sequence[Tensor] | None = None

    def own_result(self, result: Sequence[Tensor]) -> list[Tensor]:
        """`result` copied to `out`, if that was given, else `result` itself."""
        if self.out is None or not result:
            return list(result)
        for target, total in zip(self.out, result, strict=True):
            target.copy_(total)
        return list(self.out)


class Turns:
    """Sees to it that an exchange is started, waited for, started again, and not used once it is closed."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._is_started = self._is_closed = False

    def check_open(self) -> None:
        """Raises ConfigurationError if the exchange is closed."""
        if self._is_closed:
            raise ConfigurationError(f"{self._operation}: the exchange is closed; prepare a new one")

    def start(self) -> None:
        """Raises ConfigurationError if the exchange is closed, or the last start was not waited for."""
        self.check_open()
        if self._is_started:
            raise ConfigurationError(f"{self._operation}: the exchange was started already; wait for it first")
        self._is_started = True

    def wait(self) -> None:
        """Raises ConfigurationError if nothing was started."""
        self.check_open()
        if not self._is_started:
            raise ConfigurationError(f"{self._operation}: the exchange was not started; there is nothing to wait for")
        self._is_started = False

    def close(self) -> None:
        """From now on the exchange is closed."""
        self._is_closed = True


def fill_absent(flats: Sequence[Tensor]) -> None:
    """Fills a slot with what changes no sum: -0.0 (plus zero would make zero of -0.0), or 0 for integers."""
    for flat in flats:
        number = as_real(flat)
        number.fill_(-0.0 if number.is_floating_point() else 0)


def check_request(group: Group, schedule: Schedule, request: Request) -> None:
    """Raises ConfigurationError, on all ranks, unless all ask for the same schedule on the same sizes; and if there are
    not as many ranks as in the schedule, if it is no sum of contributions, or if the sizes cannot be."""
    operation = request.operation
    name = f"{schedule.name}, {schedule.collective} over {schedule.ranks} ranks, {schedule.digest()[:16]}"
    check_alike(group, name, request)
    if schedule.ranks != group.size:
        raise ConfigurationError(
            f"{operation}: {schedule.name} is a schedule for {schedule.ranks} ranks, but the group has {group.size}"
        )
    if not schedule.collective.starts_with_leaves:
        raise ConfigurationError(
            f"{operation}: expected a schedule that adds contributions up; {schedule.name} is for {schedule.collective}"
        )


def check_alike(group: Group, schedule: str, request: Request) -> None:
    """Raises ConfigurationError, on all ranks, unless `schedule` and sizes are the same on all; and for sizes that
    cannot be, or an `out` of others."""
    operation = request.operation
    own = {"schedule": schedule, "buffers": _text(request.sizes)}
    records = [json.loads(record) for record in group.gather(json.dumps(own).encode(), operation)]
    for rank, record in enumerate(records):
        for what, text in record.items():
            if text != records[0][what]:
                raise ConfigurationError(
                    f"{operation}: the ranks do not agree on the {what}. Rank 0 has {records[0][what]}; rank {rank} "
                    f"has {text}. All ranks must make the same calls with the same options"
                )
    for dtype, numel in request.sizes:
        if numel < 0 or dtype not in ADDABLE:
            raise ConfigurationError(f"{operation}: {_text([(dtype, numel)])} cannot be added up")
    if request.out is not None:
        found = [(flat.dtype, flat.numel()) for flat in request.out]
        if found != list(request.sizes) or any(flat.dim() != 1 for flat in request.out):
            raise ConfigurationError(
                f"{operation}: the result needs flat tensors of {own['buffers']}; got "
                f"{', '.join(f'{list(flat.shape)} {flat.dtype}' for flat in request.out) or 'none'}"
            )


def _text(sizes: FlatSizes) -> str:
    return ", ".join(f"{numel} x {str(dtype).removeprefix('torch.')}" for dtype, numel in sizes)
