"""The ranks of a `torch.distributed` process group: CUDA devices over NCCL, CPUs of several hosts over Gloo.

NCCL's own all-reduce fixes no order of additions, so sums are those of a schedule, by sends and receives; or, where the
order does not matter, what the backend makes of it (`native`). CPU ranks of one host read each other's messages in
place (`host_messages`).
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from samegrad.errors import ConfigurationError
from samegrad.executors.base import FlatSizes, Request, check_alike, check_request
from samegrad.executors.channel import Channel, finish_collective
from samegrad.executors.native import NativeExchange
from samegrad.executors.neighbourhood import Neighbourhood, find_neighbourhood
from samegrad.executors.notes import gather_notes
from samegrad.executors.operations import NAME_BYTES, check_operations, packed_name, tag, unpacked_name
from samegrad.executors.patience import LEAST_S
from samegrad.executors.process_exchange import ProcessExchange
from samegrad.executors.waits import Waits
from samegrad.schedules.cut import Cut
from samegrad.schedules.ir import Schedule

__all__ = ["ProcessGroup", "RollCall"]

_HEADER = struct.Struct("<qq")  # length of a record, tag of the operation
_SHORT = 1008  # bytes of a record that come with the header: as long as one message takes as long as a shorter one
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its older name
_NEVER_SENT = 0x5A3E_0000  # tags of messages, others than the user's own on the same group
_NOTES = _NEVER_SENT + 1


class RollCall(Protocol):
    """Who knows why an exchange fails, or cannot end; see `samegrad.workers.roll_call`."""

    def enter(self, group: ProcessGroup) -> None:
        """`group` is to be interrupted when there is nothing to wait for."""
        ...

    def waiting(self, operation: str) -> contextlib.AbstractContextManager[None]:
        """Within, this thread waits for the others, and an error of torch becomes a GroupError. Raises one if there is
        nothing to wait for."""
        ...

    def is_vain(self) -> bool:
        """Whether there is nothing to wait for."""
        ...

    def leave_behind(self) -> None:
        """A thread of torch will not come back from a wait."""
        ...


class ProcessGroup:
    """The default group of `torch.distributed`, which must be initialized, or `handle`, another over the same ranks.
    Tensors live on `device`.

    meet: brings the ranks together for an operation by another way, which is asked before each sum. Without it only
        `gather` and `broadcast` compare operations; a sum follows a gather in every step.
    roll_call: ends a wait for ranks that have ended, over Gloo, and finds out who is to blame when an exchange fails.
        Without it torch's errors are raised as they are.
    shares_memory: whether ranks of one host read each other's memory, on CPUs that allow it; it takes a roll call.
        Where it cannot be had, they send as others do. timeout_s: how long they wait for each other.
    """

    def __init__(
        self,
        device: torch.device,
        meet: Callable[[str], None] | None = None,
        roll_call: RollCall | None = None,
        handle: dist.ProcessGroup | None = None,
        shares_memory: bool = True,
        timeout_s: float = LEAST_S,
    ) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.device = device
        self.meet = meet
        self._roll_call = roll_call
        self._handle = handle
        self._shares_memory = shares_memory and roll_call is not None and device.type == "cpu"
        self._timeout_s = timeout_s
        self._neighbours: Neighbourhood | None = None
        self._is_explored = False
        self._waits = None
        if roll_call is not None:
            roll_call.enter(self)
            if device.type == "cpu":
                self._waits = Waits(roll_call.is_vain, roll_call.leave_behind)

    def failures_explained(self, operation: str) -> contextlib.AbstractContextManager[None]:
        """Within, an error of torch becomes a GroupError that names `operation` and who is to blame."""
        return contextlib.nullcontext() if self._roll_call is None else self._roll_call.waiting(operation)

    def interrupt(self) -> None:
        """Over Gloo, makes every wait in this group fail, now and later; may be called by any thread.

        Gloo's own abort does nothing. But a receive that runs out of time closes all connections of the group; not one
        from a rank whose connection has ended, so all are tried. Over NCCL nothing is interrupted: what it then left
        behind on the device would be taken for a sum.
        """
        for other in range(self.size) if self.device.type == "cpu" else ():
            if other != self.rank:
                with contextlib.suppress(RuntimeError, ValueError):  # the former says that it is so
                    work = dist.irecv(torch.empty(1), other, self._handle, tag=_NEVER_SENT)
                    if work is not None:
                        work.wait(timedelta(milliseconds=1))

    def gather(self, record: bytes, operation: str) -> list[bytes]:
        """Every rank's `record`, by rank; short ones come with the question whether all are at the same operation."""
        with self.failures_explained(operation):
            lengths, beginnings = self._agree(operation, record)
            return beginnings if max(lengths) <= _SHORT else self._gather(record, lengths)

    def _agree(self, operation: str, record: bytes = b"") -> tuple[list[int], list[bytes]]:
        """The length of every rank's `record`, and how it begins. Raises CallMismatch on all of them if they are not at
        the same operation."""
        own = _HEADER.pack(len(record), tag(operation)) + record[:_SHORT].ljust(_SHORT, b"\0")
        heads = gather_notes(self._handle, own, _NOTES) if self.device.type == "cpu" else self._gather_alike(own)
        lengths, tags = zip(*map(_HEADER.unpack_from, heads), strict=True)
        if len(set(tags)) > 1:
            names = self._gather(packed_name(operation), [NAME_BYTES] * self.size)
            check_operations(dict(enumerate(map(unpacked_name, names))))
        beginnings = [head[_HEADER.size :][:length] for head, length in zip(heads, lengths, strict=True)]
        return list(lengths), beginnings

    def _gather(self, record: bytes, lengths: Sequence[int]) -> list[bytes]:
        found = self._gather_alike(record.ljust(max(lengths), b"\0"))
        return [each[:length] for each, length in zip(found, lengths, strict=True)]

    def _gather_alike(self, record: bytes) -> list[bytes]:
        """Every rank's `record`, all of one length, which is not 0."""
        own = torch.frombuffer(bytearray(record), dtype=torch.uint8).to(self.device)
        received = torch.empty(self.size * own.numel(), dtype=torch.uint8, device=self.device)
        work = _all_gather(received, own, group=self._handle, async_op=True)
        finish_collective(work, received.nbytes, self._waits)
        return [row.numpy().tobytes() for row in received.view(self.size, -1).cpu()]

    def twin(self, operation: str) -> ProcessGroup:
        """See `base.Group.twin`; another process group of torch. Only `gather` and `broadcast` compare operations."""
        with self.failures_explained(operation):
            self._agree(operation)
            handle = dist.new_group(timeout=timedelta(seconds=self._timeout_s))
            return ProcessGroup(self.device, None, self._roll_call, handle, self._shares_memory, self._timeout_s)

    def broadcast(self, tensors: Sequence[Tensor], operation: str, source: int = 0) -> None:
        """Overwrites `tensors` with those of rank `source`."""
        with self.failures_explained(operation):
            self._agree(operation)
            for tensor in tensors:
                whole = tensor.to(self.device).contiguous()
                work = dist.broadcast(whole, src=source, group=self._handle, async_op=True)
                finish_collective(work, whole.nbytes, self._waits)
                tensor.copy_(whole)

    def prepare(
        self, schedule: Schedule, sizes: FlatSizes, operation: str, out: Sequence[Tensor] | None = None
    ) -> ProcessExchange:
        """See `base.Executor.prepare`: slots are tensors on the device, rounds are sends and receives."""
        request = Request(sizes, operation, out)
        check_request(self, schedule, request)
        return ProcessExchange(self.rank, schedule, request, self._channel(operation, self._explored(operation)))

    def prepare_native(
        self, cut: Cut, sizes: FlatSizes, operation: str, out: Sequence[Tensor] | None = None
    ) -> NativeExchange:
        """The same by the backend's own all-reduce, whose order of additions is its own."""
        request = Request(sizes, operation, out)
        check_alike(self, f"native over {cut.ranks} ranks", request)
        idle = [rank for rank, nodes in enumerate(cut.nodes) if not nodes]
        if idle or cut.ranks != self.size:
            found = (
                f"rank {idle[0]} holds none" if idle else f"there are {cut.ranks} in the cut, {self.size} in the group"
            )
            raise ConfigurationError(f"{operation}: native needs a contribution of every rank of the group; {found}")
        held = len(cut.nodes[self.rank])
        return NativeExchange(held, request, self._channel(operation))

    def _explored(self, operation: str) -> Neighbourhood | None:
        """The ranks that may share memory with this one; the first time, all of them find out."""
        if self._shares_memory and self._roll_call is not None and not self._is_explored:
            gather = functools.partial(self.gather, operation=operation)
            self._neighbours = find_neighbourhood(self.rank, gather, self._timeout_s, self._roll_call.is_vain)
            self._is_explored = True
        return self._neighbours

    def _channel(self, operation: str, neighbours: Neighbourhood | None = None) -> Channel:
        explained = functools.partial(self.failures_explained, operation)
        gather = functools.partial(self.gather, operation=operation)
        return Channel(self.device, self._handle, self.meet or _nowhere, explained, self._waits, gather, neighbours)


def _nowhere(operation: str) -> None:
    """There is no other way to meet."""
