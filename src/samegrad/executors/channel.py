"""How an exchange over a process group of `torch.distributed` reaches the other ranks, and waits for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from samegrad.executors.neighbourhood import Gather, Neighbourhood
from samegrad.executors.waits import Waits

__all__ = ["LONG", "Channel", "finish_collective"]

LONG = 1 << 18
"""Bytes; a longer message is not written in one piece, since no socket has room for it."""


@dataclass(frozen=True, slots=True)
class Channel:
    """The group `handle` of torch (None: the default one), with buffers on `device`.

    meet: called with the name of the operation before the first message. explained: a context in which errors of torch
    get explanations. waits: by which waits can be given up; None to leave them to torch. neighbours: the ranks of this
    host, if some can share memory; they agree on it by `gather`, which gives every rank's record.
    """

    device: torch.device
    handle: dist.ProcessGroup | None
    meet: Callable[[str], None]
    explained: Callable[[], contextlib.AbstractContextManager[None]]
    waits: Waits | None
    gather: Gather
    neighbours: Neighbourhood | None = None

    def finish(self, messages: Sequence[dist.Work], is_long: bool) -> None:
        """Waits for sends and receives. is_long: whether one of them may be under way for a while."""
        if is_long and self.waits is not None and messages:
            self.waits.messages(messages)
            return
        for work in messages:
            work.wait()


def finish_collective(work: dist.Work | None, nbytes: int, waits: Waits | None) -> None:
    """Waits for a collective on buffers of `nbytes` bytes; None is one without this rank."""
    if work is None:
        return
    if waits is None or nbytes <= LONG:
        work.wait()
    else:
        waits.collective(work)
