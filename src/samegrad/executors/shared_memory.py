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
import re
import struct
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from samegrad.errors import GroupError
from samegrad.executors.base import FlatSizes, Piece
from samegrad.executors.counters import Counters, HasLeft
from samegrad.machine import available_memory
from samegrad.memory import new_memory_file, open_memory_file
from samegrad.shards import Node, additions, even, subtrees
from samegrad.units import format_bytes

__all__ = ["SharedMemoryGroup", "SharedTreeSum"]

_ALIGNMENT = 64  # bytes; also of the parts of a sum, so that two ranks do not write into one cache line
_BOARD = 1 << 16  # bytes that one rank can show to the others at a time
_BLOCK = 1 << 16  # elements; intermediate sums of this size stay in the cache
_HEADER = struct.Struct("<Q")


class SharedMemoryGroup:
    """The group of `size` processes that all inherited the memory file `fd`, seen from `rank`; see `Counters`."""

    def __init__(
        self,
        fd: int,
        rank: int,
        size: int,
        timeout_s: float,
        has_left: HasLeft = lambda _: False,
        start_timeout_s: float | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        counters = Counters.nbytes(size)
        try:
            memory = _map(fd, counters + 2 * size * _BOARD)
        except OSError as error:
            raise GroupError(
                f"memory for the ranks to meet in cannot be had: {_explained(error).strerror}", rank
            ) from error
        self.counters = Counters(memory[:counters], rank, size, timeout_s, has_left, start_timeout_s)
        self._boards = memory[counters:]
        self._turn = 0

    def gather(self, record: bytes, operation: str) -> list[bytes]:
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
            self.counters.barrier(operation)
            longest = 0
            for rank, received in enumerate(records):
                board = self._board(turn, rank)
                (length,) = _HEADER.unpack_from(board)
                longest = max(longest, length)
                received += board[_HEADER.size : _HEADER.size + min(room, length - len(received))]
            if sent >= longest:
                return [bytes(received) for received in records]

    def broadcast(self, tensors: Sequence[Tensor], operation: str) -> None:
        """Overwrites `tensors` (on any device) with those of rank 0, through memory mapped for the occasion."""
        places, total = [], 0
        for tensor in tensors:
            places.append(total)
            total += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        if total == 0:
            return
        memory = self.share(total, operation)
        shared = [
            memory[place : place + tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
            for place, tensor in zip(places, tensors, strict=True)
            if tensor.numel()
        ]
        own = [tensor for tensor in tensors if tensor.numel()]
        for place, tensor in zip(shared, own, strict=True):
            if self.rank == 0:
                place.copy_(tensor)
        self.counters.barrier(operation)
        for place, tensor in zip(shared, own, strict=True):
            if self.rank != 0:
                tensor.copy_(place)

    def share(self, nbytes: int, operation: str) -> Tensor:
        """`nbytes` of zeroed memory (uint8) that every rank maps; it is freed when the last rank lets go of it."""
        fd, failure = -1, b""
        try:
            if self.rank == 0:
                fd = _new_memory(nbytes)
        except OSError as error:
            failure = (error.strerror or str(error)).encode()
        answers = self.gather(failure or b"%d %d" % (os.getpid(), fd), operation)
        found = re.fullmatch(rb"(\d+) (\d+)", answers[0])
        if found is None:
            raise GroupError(
                f"{format_bytes(nbytes)} of shared memory cannot be had for the exchange: {answers[0].decode()}",
                rank=0,
            )
        try:
            if self.rank != 0:
                fd = open_memory_file(int(found[1]), int(found[2]))
        except OSError as error:
            failure = f"rank {self.rank}: {error}".encode()
        failures = [answer for answer in self.gather(failure, operation) if answer]
        if failures:
            raise GroupError(f"the memory of rank 0 could not be opened by {failures[0].decode()}")
        try:
            return torch.frombuffer(_map(fd, nbytes), dtype=torch.uint8)
        finally:
            os.close(fd)

    def tree_sum(self, cut: Sequence[range], leaves: int, sizes: FlatSizes, operation: str) -> SharedTreeSum:
        """A sum over `leaves` shards whose buffers lie in memory that all ranks map."""
        return SharedTreeSum(self, cut, leaves, sizes, operation)

    def _board(self, turn: int, rank: int) -> memoryview:
        start = (turn * self.size + rank) * _BOARD
        return self._boards[start : start + _BOARD]


class SharedTreeSum:
    """A sum over the ranks of `group`, from buffers that all of them map; see `base.TreeSum`."""

    def __init__(
        self, group: SharedMemoryGroup, cut: Sequence[range], leaves: int, sizes: FlatSizes, operation: str
    ) -> None:
        self._operation = operation
        self._counters = group.counters
        self._rank = group.rank
        self._leaves = leaves
        held = [subtrees(part, leaves) for part in cut]
        self._nodes = [node for nodes in held for node in nodes]
        self._first = sum(len(nodes) for nodes in held[: group.rank])
        self._everyone_sums_all = group.size <= 2
        copies = len(self._nodes) + (0 if self._everyone_sums_all else 1)
        self._slots = _flat_buffers(group, sizes, copies, operation)
        self._total = None if self._everyone_sums_all else self._slots.pop()
        self._parts = [_parts(numel, dtype, group.size)[group.rank] for dtype, numel in sizes]
        self._spare: dict[torch.dtype, Tensor] = {}
        self._read = 0  # the ticket at which every rank has read the slots

    def slot(self, position: int) -> list[Tensor]:
        """See `base.TreeSum.slot`."""
        self._counters.wait(self._read)
        return self._slots[self._first + position]

    def run(self, present: Collection[Node], out: Sequence[Tensor]) -> None:
        """See `base.TreeSum.run`."""
        held, steps = self._plan(present)
        self._counters.barrier(self._operation)
        if self._total is None:
            for flat, private in enumerate(out):
                self._add_up([self._slots[place][flat] for place in held], steps, private)
            self._read = self._counters.arrive(self._operation)
            return
        for flat, (start, stop) in enumerate(self._parts):
            values = [self._slots[place][flat][start:stop] for place in held]
            self._add_up(values, steps, self._total[flat][start:stop])
        self._read = self._counters.arrive(self._operation)
        self._counters.wait(self._read)
        for private, total in zip(out, self._total, strict=True):
            private.copy_(total)

    def run_pieces(
        self,
        present: Collection[Node],
        pieces: Sequence[Piece],
        kept: Mapping[Node, Sequence[Tensor]],
        out: Sequence[Tensor],
    ) -> list[Tensor]:
        """The root's sums of the elements `pieces`, which no other rank asks for; returns one tensor for each.

        kept: for each of this rank's subtrees that are present, its values of the pieces (flat): they need not be in
            the slots, where nobody else reads them. out: room for the sums. A sum is returned in one of its kept
            values where that saves a pass over memory, else in `out`.
        """
        held, steps = self._plan(present)
        self._counters.barrier(self._operation)
        sums = []
        for number, (flat, start, stop) in enumerate(pieces):
            values, target = [], out[number]
            for place in held:
                own = kept.get(self._nodes[place])
                values.append(self._slots[place][flat][start:stop] if own is None else own[number])
                if own is not None and len(steps) <= 1:  # nothing is read after it is written
                    target = own[number]
            self._add_up(values, steps, target)
            sums.append(target)
        self._read = self._counters.arrive(self._operation)
        return sums

    def _plan(self, present: Collection[Node]) -> tuple[list[int], list[tuple[int, int]]]:
        """The places of the subtrees `present` among all, and the additions between them."""
        held = [place for place, node in enumerate(self._nodes) if node in present]
        return held, additions([self._nodes[place] for place in held], self._leaves)

    def _add_up(self, values: list[Tensor], steps: list[tuple[int, int]], target: Tensor) -> None:
        """Adds `values` (flat, of one size) up into `target`, block by block so that sums in between stay in cache."""
        if not steps:
            if target is not values[0]:
                target.copy_(values[0])
            return
        numel = target.numel()
        block = _BLOCK if len(steps) > 1 else max(numel, 1)
        spare = self._spare_for(target.dtype, len(values) - 1, min(block, numel)) if len(steps) > 1 else []
        for begin in range(0, numel, block):
            end = min(begin + block, numel)
            parts = [value[begin:end] for value in values]
            for i, j in steps:
                out = target[begin:end] if i == 0 else spare[i - 1][: end - begin]
                parts[i] = torch.add(parts[i], parts[j], out=out)

    def _spare_for(self, dtype: torch.dtype, rows: int, columns: int) -> list[Tensor]:
        spare = self._spare.get(dtype)
        if spare is None or spare.numel() < rows * columns:
            spare = self._spare[dtype] = torch.empty(rows * columns, dtype=dtype)
        return list(spare[: rows * columns].view(rows, columns))


def _new_memory(nbytes: int) -> int:
    """An anonymous memory file of `nbytes`. Its pages are taken now: a lack of memory later would be a bus error.

    Taking more than there is would not fail but have the kernel kill processes, so that is refused before.
    """
    available = available_memory()
    if nbytes > available:
        raise OSError(
            errno.ENOMEM,
            f"{format_bytes(available)} are available. Use fewer workers, a smaller model, or a machine (or container) "
            f"with more memory",
        )
    fd = new_memory_file()
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        raise _explained(error) from error
    return fd


def _explained(error: OSError) -> OSError:
    if error.errno == errno.EFBIG:
        return OSError(errno.EFBIG, "it is larger than files may be; raise that limit (ulimit -f)")
    return error


def _map(fd: int, nbytes: int) -> memoryview:
    os.posix_fallocate(fd, 0, nbytes)
    return memoryview(mmap.mmap(fd, nbytes))


def _flat_buffers(group: SharedMemoryGroup, sizes: FlatSizes, copies: int, operation: str) -> list[list[Tensor]]:
    """`copies` times one flat buffer for each of `sizes`, in one piece of shared memory, at aligned places."""
    padded = [-(-numel * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for dtype, numel in sizes]
    memory = group.share(max(sum(padded) * copies, 1), operation)
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
