"""Process groups over Gloo as training has them, in the processes of a launch."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

from samegrad.executors.process_group import ProcessGroup
from samegrad.workers import context
from samegrad.workers.calling import call_each_other
from samegrad.workers.lifeline import Lifeline
from samegrad.workers.meeting import Meeting
from samegrad.workers.roll_call import RollCall

__all__ = ["CPU", "joined", "roll_call_of"]

CPU = torch.device("cpu")


def roll_call_of(store: str, size: int) -> RollCall:
    """That of this rank, which joins a group of torch; with it, waits are those of training."""
    worker = context()
    assert worker is not None
    meeting = FileStore(store, size)
    dist.init_process_group("gloo", store=meeting, rank=worker.rank, world_size=size, timeout=timedelta(seconds=60))
    ends, hosts, failures = call_each_other(Meeting(meeting, worker.rank, size, 60), worker.rank, size, "127.0.0.1")
    assert not failures
    return RollCall(Lifeline(worker.rank, ends, hosts))


def joined(store: str, size: int) -> list[ProcessGroup]:
    """This rank's end of a group whose ranks read each other's memory, and of one as if they were on several hosts."""
    roll_call = roll_call_of(store, size)
    return [ProcessGroup(CPU, roll_call=roll_call, shares_memory=shares_memory) for shares_memory in (True, False)]
