"""The processes of one host: they map the same memory and read each other's buffers in place.

A rank adds its shards up directly into memory that all map. To sum over ranks, everyone waits until all have written,
then reads each contribution once: with two ranks each computes the whole sum (reading 2 M, writing M bytes); with more,
each computes one part of it (reading M, writing M / k), and everyone copies the parts of the others. There is no
socket and no copy through a pipe.

Memory is anonymous (memfd): rank 0 makes it and the others open it through /proc, so that nothing has a name, nothing
is left behind by a crash, and the size of /dev/shm does not matter.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Collection, Sequence

import psutil
import torch
from torch import Tensor

from samegrad.errors import GroupError
from samegrad.executors.base import FlatSizes, Piece
from samegrad.executors.counters import Counters, HasLeft
from samegrad.shards import Node, additions, even, subtrees
from samegrad.units import format_bytes

__all__ = ["SharedMemoryGroup", "SharedTreeSum"]

_ALIGNMENT = 64  # bytes; also of the parts of a sum, so that two ranks do not write into one cache line
_BOARD = 1 << 16  # bytes that one rank can show to the others at a time
_BLOCK = 1 << 16  # elements; intermediate sums of this size stay in the cache
_HEADER = struct.Struct("<Q")


class SharedMemoryGroup:
    """The group of `size` processes that all inherited the memory file `fd`, seen from `rank`; see `Counters`."""

    def __init__(self, fd: int, rank: int, size: int, timeout_s: float, has_left: HasLeft = lambda _: False) -> None:
        self.rank = rank
        self.size = size
        counters = Counters.nbytes(size)
        memory = _map(fd, counters + 2 * size * _BOARD)
        self.counters = Counters(memory[:counters], rank, size, timeout_s, has_left)
        self._boards = memory[counters:]
        self._turn = 0

    def gather(self, record: bytes) -> list[bytes]:
        """Every rank's `record`, by rank; long ones go over the boards in pieces."""
        records = [bytearray() for _ in range(self.size)]
        room, sent = _BOARD - _HEADER.size, 0
        while True:
            # Two boards per rank, used in turn: who has passed the barrier of the next turn has read this one's.
            turn, self._turn = self._turn, 1 - self._turn
            piece = record[sent : sent + room]
            board = self._board(turn, self.rank)
            board[: _HEADER.size + len(piece)] = _HEADER.pack(len(record)) + piece
            sent += room
            self.counters.barrier()
            longest = 0
            for rank, received in enumerate(records):
                board = self._board(turn, rank)
                (length,) = _HEADER.unpack_from(board)
                longest = max(longest, length)
                received += board[_HEADER.size : _HEADER.size + min(room, length - len(received))]
            if sent >= longest:
                return [bytes(received) for received in records]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrites `tensors` (on any device) with those of rank 0, through memory mapped for the occasion."""
        places, total = [], 0
        for tensor in tensors:
            places.append(total)
            total += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        if total == 0:
            return
        memory = self.share(total)
        shared = [
            memory[place : place + tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
            for place, tensor in zip(places, tensors, strict=True)
            if tensor.numel()
        ]
        own = [tensor for tensor in tensors if tensor.numel()]
        for place, tensor in zip(shared, own, strict=True):
            if self.rank == 0:
                place.copy_(tensor)
        self.counters.barrier()
        for place, tensor in zip(shared, own, strict=True):
            if self.rank != 0:
                tensor.copy_(place)

    def share(self, nbytes: int) -> Tensor:
        """`nbytes` of zeroed memory (uint8) that every rank maps; it is freed when the last rank lets go of it."""
        fd, failure = -1, b""
        try:
            if self.rank == 0:
                fd = _new_memory(nbytes)
        except OSError as error:
            failure = (error.strerror or str(error)).encode()
        answers = self.gather(failure or f"/proc/{os.getpid()}/fd/{fd}".encode())
        if not answers[0].startswith(b"/proc/"):
            raise GroupError(
                f"{format_bytes(nbytes)} of shared memory cannot be had for the exchange: {answers[0].decode()}. Use "
                f"fewer workers, a smaller model, or a machine with more memory",
                rank=0,
            )
        try:
            if self.rank != 0:
                fd = os.open(answers[0], os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            failure = f"rank {self.rank}: {error}".encode()
        failures = [answer for answer in self.gather(failure) if answer]
        if failures:
            raise GroupError(f"the memory of rank 0 could not be opened by {failures[0].decode()}")
        try:
            return torch.frombuffer(_map(fd, nbytes), dtype=torch.uint8)
        finally:
            os.close(fd)

    def tree_sum(self, cut: Sequence[range], leaves: int, sizes: FlatSizes) -> SharedTreeSum:
        """A sum over `leaves` shards whose buffers lie in memory that all ranks map."""
        return SharedTreeSum(self, cut, leaves, sizes)

    def _board(self, turn: int, rank: int) -> memoryview:
        start = (turn * self.size + rank) * _BOARD
        return self._boards[start : start + _BOARD]


class SharedTreeSum:
    """A sum over the ranks of `group`, from buffers that all of them map; see `base.TreeSum`."""

    def __init__(self, group: SharedMemoryGroup, cut: Sequence[range], leaves: int, sizes: FlatSizes) -> None:
        self._counters = group.counters
        self._rank = group.rank
        self._leaves = leaves
        held = [subtrees(part, leaves) for part in cut]
        self._nodes = [node for nodes in held for node in nodes]
        self._first = sum(len(nodes) for nodes in held[: group.rank])
        self._everyone_sums_all = group.size <= 2
        copies = len(self._nodes) + (0 if self._everyone_sums_all else 1)
        self._slots = _flat_buffers(group, sizes, copies)
        self._total = None if self._everyone_sums_all else self._slots.pop()
        self._parts = [_parts(numel, dtype, group.size)[group.rank] for dtype, numel in sizes]
        self._spare = [torch.empty(0, dtype=dtype) for dtype, _ in sizes]
        self._read = 0  # the ticket at which every rank has read the slots

    def slot(self, position: int) -> list[Tensor]:
        """See `base.TreeSum.slot`."""
        self._counters.wait(self._read)
        return self._slots[self._first + position]

    def run(self, present: Collection[Node], out: Sequence[Tensor], pieces: Sequence[Piece] | None = None) -> None:
        """See `base.TreeSum.run`."""
        held = [position for position, node in enumerate(self._nodes) if node in present]
        steps = additions([self._nodes[position] for position in held], self._leaves)
        self._counters.barrier()
        if pieces is not None or self._total is None:
            wanted = pieces if pieces is not None else [(f, 0, flat.numel()) for f, flat in enumerate(out)]
            for flat, start, stop in wanted:
                self._sum(held, steps, flat, start, stop, out[flat])
            self._read = self._counters.arrive()
            return
        for flat, (start, stop) in enumerate(self._parts):
            self._sum(held, steps, flat, start, stop, self._total[flat])
        self._read = self._counters.arrive()
        self._counters.wait(self._read)
        for private, total in zip(out, self._total, strict=True):
            private.copy_(total)

    def _sum(
        self, held: list[int], steps: list[tuple[int, int]], flat: int, start: int, stop: int, out: Tensor
    ) -> None:
        """Adds elements start..stop of the slots `held` up into the same elements of `out`."""
        block = stop - start if len(steps) <= 1 else _BLOCK
        for begin in range(start, stop, max(block, 1)):
            end = min(begin + block, stop)
            values = [self._slots[position][flat][begin:end] for position in held]
            target = out[begin:end]
            if not steps:
                target.copy_(values[0])
            spare = self._spare_for(flat, len(held) - 1, end - begin)
            for i, j in steps:
                values[i] = torch.add(values[i], values[j], out=target if i == 0 else spare[i - 1])

    def _spare_for(self, flat: int, rows: int, columns: int) -> Tensor:
        rows = rows if rows > 1 else 0  # a single addition goes to its target directly
        if self._spare[flat].numel() < rows * columns:
            self._spare[flat] = torch.empty(rows * columns, dtype=self._spare[flat].dtype)
        return self._spare[flat][: rows * columns].view(rows, columns)


def _new_memory(nbytes: int) -> int:
    """An anonymous memory file of `nbytes`. Its pages are taken now: a lack of memory later would be a bus error.

    Taking more than there is would not fail but have the kernel kill processes, so that is refused before.
    """
    available = psutil.virtual_memory().available
    if nbytes > available:
        raise OSError(errno.ENOMEM, f"{format_bytes(available)} are available")
    fd = os.memfd_create("samegrad", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError:
        os.close(fd)
        raise
    return fd


def _map(fd: int, nbytes: int) -> memoryview:
    os.posix_fallocate(fd, 0, nbytes)
    return memoryview(mmap.mmap(fd, nbytes))


def _flat_buffers(group: SharedMemoryGroup, sizes: FlatSizes, copies: int) -> list[list[Tensor]]:
    """`copies` times one flat buffer for each of `sizes`, in one piece of shared memory, at aligned places."""
    padded = [-(-numel * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for dtype, numel in sizes]
    memory = group.share(max(sum(padded) * copies, 1))
    buffers, start = [], 0
    for _ in range(copies):
        copy = []
        for (dtype, numel), nbytes in zip(sizes, padded, strict=True):
            copy.append(memory[start : start + numel * dtype.itemsize].view(dtype))
            start += nbytes
        buffers.append(copy)
    return buffers


def _parts(numel: int, dtype: torch.dtype, ranks: int) -> list[tuple[int, int]]:
    """Cuts `numel` elements into one part for each rank, at aligned places."""
    unit = max(_ALIGNMENT // dtype.itemsize, 1)
    blocks = even(-(-numel // unit), ranks)
    return [(min(part.start * unit, numel), min(part.stop * unit, numel)) for part in blocks]
