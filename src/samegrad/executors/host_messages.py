"""Messages between two ranks of one host that are not copied: the receiver reads the cells in the sender's memory.

All that a rank sends lies in one memory file, which those of its host map that receive something (the readers). Two
counters for each reader say how far it has come: the sender counts the messages that may be read, the reader those
that it has read. Each counter has one writer, so no atomic operation is needed; and both come to their messages in the
same order, so no message needs a name.

    memory of a sender   [ counters of reader 0 | 1 | ... | lists | cells ]
    of a reader          messages offered, where its list begins, how long it is     one cache line
                         messages read                                               another one
    a list               where each cell begins that the reader reads, in the order in which it does

The sender waits until a message was read before it changes one of its cells. So to send is what it is over a
connection, when the last byte has been taken; and a schedule that may be run by sends and receives may be run so.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from samegrad.executors.host_memory import take_memory
from samegrad.executors.pauses import Pauses
from samegrad.memory import offered_memory

__all__ = ["Outgoing", "Receiver", "Sender", "Watch"]

_ALIGNMENT = 64  # bytes; a cache line
_READER = 2 * _ALIGNMENT // 8  # numbers of 64 bits for a reader
_START, _LENGTH, _READ = 1, 2, _ALIGNMENT // 8  # places among them
_LOOK_S = 2e-3  # after which a rank asks whether there is anything to wait for


@dataclass(frozen=True, slots=True)
class Watch:
    """How a rank waits for a counter: for `timeout_s` seconds, and not if `is_vain`; spin_s: see `Pauses`."""

    timeout_s: float
    is_vain: Callable[[], bool]
    spin_s: float

    def wait(self, counts: memoryview, place: int, least: int, peer: int) -> None:
        """Returns when `counts[place]`, which rank `peer` writes, is `least` or more. Raises RuntimeError if it does
        not get so far, as torch does."""
        if counts[place] >= least:
            return
        pauses = Pauses(self.spin_s)
        while counts[place] < least:
            waited = pauses.waited()
            if waited > self.timeout_s:
                raise RuntimeError(f"timed out after {self.timeout_s:g} s, waiting for the memory of rank {peer}")
            if waited > _LOOK_S and self.is_vain() and counts[place] < least:
                raise RuntimeError(f"given up, waiting for the memory of rank {peer}")
            pauses.pause(waited)


class Outgoing:
    """The memory of a rank that has something to send to others of its host, `ranks` in ascending order.

    listed: how many cells are to be listed for each reader. cells: the bytes of each tensor to come (see `empty`), in
    any order. Raises OSError if there is no such memory.
    """

    def __init__(self, ranks: Sequence[int], listed: Mapping[int, int], cells: Iterable[int]) -> None:
        self._ranks = ranks
        numbers = len(ranks) * _READER + sum(listed.values())
        self._free = _aligned(8 * numbers)
        nbytes = self._free + sum(map(_aligned, cells))
        self._fd = take_memory(nbytes)
        try:
            memory = memoryview(mmap.mmap(self._fd, nbytes))
        except OSError:
            self.close()
            raise
        self._counts = memory[: self._free].cast("Q")
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._unlisted: dict[int, int] = {}  # by reader, where the next cell is to be listed
        place = len(ranks) * _READER
        for reader, length in listed.items():
            line = _line(ranks, reader)
            self._counts[line + _START], self._counts[line + _LENGTH] = place, length
            self._unlisted[reader] = place
            place += length

    def empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        """A flat tensor in this memory, which is zeroed."""
        start, nbytes = self._free, numel * dtype.itemsize
        self._free += _aligned(nbytes)
        return self._bytes[start : start + nbytes].view(dtype)

    def has_reader(self, rank: int) -> bool:
        """Whether cells are to be listed for `rank`."""
        return rank in self._unlisted

    def list_cell(self, reader: int, cell: Tensor) -> None:
        """What `reader` reads next; a part of such a tensor."""
        place = self._unlisted[reader]
        self._unlisted[reader] += 1
        self._counts[place] = int(cell.storage_offset()) * cell.element_size()

    def offer(self) -> list[int]:
        """See `samegrad.memory.offered_memory`."""
        return offered_memory(self._fd)

    def sender(self, reader: int, watch: Watch) -> Sender:
        """What tells `reader`."""
        return Sender(self._counts, _line(self._ranks, reader), reader, watch)

    def close(self) -> None:
        """Nobody opens the memory any more; who has mapped it keeps it."""
        os.close(self._fd)


class Sender:
    """This rank's end of its messages to rank `peer`, whose counters are at `line`."""

    def __init__(self, counts: memoryview, line: int, peer: int, watch: Watch) -> None:
        self._counts, self._line, self._peer, self._watch = counts, line, peer, watch
        self._offered = 0

    def offer(self) -> int:
        """The cells of the next message may be read; returns its number."""
        self._offered += 1
        self._counts[self._line] = self._offered
        return self._offered

    def wait(self, number: int) -> None:
        """Returns when the message was read. Raises as `Watch.wait` does."""
        self._watch.wait(self._counts, self._line + _READ, number, self._peer)


class Receiver:
    """This rank's end of the messages from `peer`, whose memory file is open as `fd` until this returns.

    ranks: of the host, in ascending order. Raises OSError if it cannot be mapped.
    """

    def __init__(self, fd: int, ranks: Sequence[int], rank: int, peer: int, watch: Watch) -> None:
        memory = memoryview(mmap.mmap(fd, os.fstat(fd).st_size))
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        counts = memory[: len(ranks) * _READER * 8].cast("Q")
        self._counts, self._line, self._peer, self._watch = counts, _line(ranks, rank), peer, watch
        start, length = counts[self._line + _START], counts[self._line + _LENGTH]
        self._cells = iter(memory[8 * start : 8 * (start + length)].cast("Q").tolist())
        self._read = 0

    def cell(self, like: Tensor) -> Tensor:
        """The next one of the list, which has the size and dtype of `like`."""
        start = next(self._cells)
        return self._bytes[start : start + like.nbytes].view(like.dtype)

    def wait(self) -> None:
        """Returns when the next message may be read. Raises as `Watch.wait` does."""
        self._watch.wait(self._counts, self._line, self._read + 1, self._peer)

    def has_read(self) -> None:
        """The message that was waited for is not needed any more."""
        self._read += 1
        self._counts[self._line + _READ] = self._read


def _line(ranks: Sequence[int], reader: int) -> int:
    return ranks.index(reader) * _READER


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
