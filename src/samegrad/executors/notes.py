"""Short records that the ranks of a process group tell each other, over Gloo.

Gloo sends nothing before it was asked for; and what asks stands in one line with all that is sent on the connection.
So whoever asks for a record when it is wanted waits for two ways through the network, and for a bucket of gradients
that was sent before. Here every rank asks for the next note of each other one as soon as it has got the last: a note
goes at once, by one message. A collective of Gloo, which asks when it is called, takes three times as long.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["gather_notes"]

_posts: WeakKeyDictionary[dist.ProcessGroup, _Post] = WeakKeyDictionary()


def gather_notes(handle: dist.ProcessGroup | None, note: bytes, tag: int) -> list[bytes]:
    """Every rank's `note` in the group `handle` (None: the default one), by rank; all of one length, each time.

    tag: of messages that nobody else sends. Raises RuntimeError, of torch, where a rank cannot be reached.
    """
    group = handle or dist.group.WORLD
    assert group is not None
    if group not in _posts:  # kept here, since whoever asks anew would get what was asked for before
        _posts[group] = _Post(dist.get_rank(), dist.get_world_size(), len(note), tag)
        _posts[group].ask(handle)
    return _posts[group].gather(handle, note)


class _Post:
    """Of one rank; it does not hold the group, which would then live for ever."""

    def __init__(self, rank: int, size: int, nbytes: int, tag: int) -> None:
        self._rank, self._tag = rank, tag
        self._others = [(rank + distance) % size for distance in range(1, size)]
        self._notes = torch.empty(size, nbytes, dtype=torch.uint8)
        self._coming: list[dist.Work | None] = []
        self._failure: RuntimeError | None = None

    def ask(self, handle: dist.ProcessGroup | None) -> None:
        """Asks all others for their next note."""
        self._coming = [dist.irecv(self._notes[other], other, handle, self._tag) for other in self._others]

    def gather(self, handle: dist.ProcessGroup | None, note: bytes) -> list[bytes]:
        """See `gather_notes`."""
        if self._failure is not None:
            raise self._failure
        self._failure = RuntimeError("a gather was broken off: what comes now are its notes")  # by Ctrl-C, if it stays
        own: Tensor = self._notes[self._rank]
        own.copy_(torch.frombuffer(bytearray(note), dtype=torch.uint8))
        going = [dist.isend(own, other, handle, self._tag) for other in self._others]
        for work in (*self._coming, *going):
            if work is not None:
                work.wait()
        found = [each.tobytes() for each in self._notes.numpy()]
        self._failure = None
        try:
            self.ask(handle)
        except RuntimeError as failure:  # a rank has got all notes and has ended: these may have been the last
            self._failure = failure
        return found
