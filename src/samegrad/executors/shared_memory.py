"""The processes of one host: they map the same memory and read each other's buffers in place.

A rank adds its shards up directly into memory that all map; sums over ranks are those of a schedule, and read every
value where it is (`shared_exchange`). There is no socket and no copy through a pipe.

Memory is anonymous (memfd): rank 0 makes it and the others open it through /proc, so that nothing has a name, nothing
is left behind by a crash, and the size of /dev/shm does not matter.
"""

from __future__ import annotations

import functools
import os
import re
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from samegrad.errors import GroupError
from samegrad.executors.base import FlatSizes, Request, check_alike, check_request
from samegrad.executors.counters import Counters, HasLeft
from samegrad.executors.host_memory import explained, map_memory, take_memory
from samegrad.executors.shared_exchange import SharedExchange
from samegrad.executors.shared_mean import SharedMean
from samegrad.executors.shared_pieces import SharedPieces
from samegrad.executors.whereabouts import Whereabouts
from samegrad.memory import open_memory_file
from samegrad.schedules.ir import Schedule
from samegrad.shards import subtrees
from samegrad.units import format_bytes

__all__ = ["SharedMemoryGroup"]

_ALIGNMENT = 64  # bytes
_BOARD = 1 << 16  # bytes that one rank can show to the others at a time
_HEADER = struct.Struct("<Q")


class SharedMemoryGroup:
    """The group of `size` processes that all inherited the memory file `fd`, seen from `rank`; see `Counters`."""

    def __init__(
        self,
        fd: int,
        rank: int,
        size: int,
        timeout_s: float | None,
        has_left: HasLeft = lambda _: False,
        start_timeout_s: float | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        counters, boards = Counters.nbytes(size), 2 * size * _BOARD
        try:
            memory = map_memory(fd, _nbytes(size))
        except OSError as error:
            raise GroupError(
                f"memory for the ranks to meet in cannot be had: {explained(error).strerror}", rank
            ) from error
        self.counters = Counters(memory[:counters], rank, size, timeout_s, has_left, start_timeout_s)
        self._timeout_s, self._start_timeout_s = timeout_s, start_timeout_s
        self._boards = memory[counters : counters + boards]
        self._turn = 0
        self._number = os.fstat(fd).st_ino  # of the memory, the same for all who map it
        self._meet_under(Whereabouts(memory[counters + boards :], rank, size))

    def _meet_under(self, whereabouts: Whereabouts) -> None:
        self._whereabouts = whereabouts
        self.counters.enter(whereabouts, self._number)

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

    def twin(self, operation: str) -> SharedMemoryGroup:
        """See `base.Group.twin`; who has left this group has left its twins."""
        fd = self._open_shared(_nbytes(self.size), operation)
        try:
            twin = SharedMemoryGroup(
                fd, self.rank, self.size, self._timeout_s, self.counters.has_left, self._start_timeout_s
            )
        finally:
            os.close(fd)
        twin._meet_under(self._whereabouts)
        return twin

    def broadcast(self, tensors: Sequence[Tensor], operation: str, source: int = 0) -> None:
        """Overwrites `tensors` (on any device) with those of rank `source`, through memory mapped for the occasion."""
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
            if self.rank == source:
                place.copy_(tensor)
        self.counters.barrier(operation)
        for place, tensor in zip(shared, own, strict=True):
            if self.rank != source:
                tensor.copy_(place)

    def share(self, nbytes: int, operation: str) -> Tensor:
        """`nbytes` of zeroed memory (uint8) that every rank maps; it is freed when the last rank lets go of it."""
        fd = self._open_shared(nbytes, operation)
        try:
            return torch.frombuffer(map_memory(fd, nbytes), dtype=torch.uint8)
        finally:
            os.close(fd)

    def _open_shared(self, nbytes: int, operation: str) -> int:
        """A memory file that every rank has opened."""
        fd, failure = -1, b""
        try:
            if self.rank == 0:
                fd = take_memory(nbytes)
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
        return fd

    def flat_buffers(self, sizes: FlatSizes, copies: int, operation: str) -> list[list[Tensor]]:
        """`copies` times one flat buffer for each of `sizes`, at aligned places in memory as of `share`."""
        padded = [-(-numel * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for dtype, numel in sizes]
        memory = self.share(max(sum(padded) * copies, 1), operation)
        buffers, start = [], 0
        for _ in range(copies):
            copy = []
            for (dtype, numel), nbytes in zip(sizes, padded, strict=True):
                copy.append(memory[start : start + numel * dtype.itemsize].view(dtype))
                start += nbytes
            buffers.append(copy)
        return buffers

    def prepare(
        self, schedule: Schedule, sizes: FlatSizes, operation: str, out: Sequence[Tensor] | None = None
    ) -> SharedExchange:
        """See `base.Executor.prepare`: slots lie in memory that all ranks map, and are read where they are."""
        request = Request(sizes, operation, out)
        check_request(self, schedule, request)
        make_buffers = functools.partial(self.flat_buffers, sizes, operation=operation)
        return SharedExchange(self.counters, self.rank, schedule, request, make_buffers)

    def prepare_pieces(self, cut: Sequence[range], leaves: int, sizes: FlatSizes, operation: str) -> SharedPieces:
        """A sum over `leaves` shards, of which rank r holds the range `cut[r]`, for ranks that need parts of it."""
        held = [subtrees(part, leaves) for part in cut]
        nodes = [node for own in held for node in own]
        slots = self.flat_buffers(sizes, len(nodes), operation)
        first = sum(len(own) for own in held[: self.rank])
        return SharedPieces(self.counters, nodes, leaves, slots, first, operation)

    def prepare_mean(self, sizes: FlatSizes, operation: str) -> SharedMean:
        """The mean of flat buffers of `sizes`, one of each on every rank."""
        check_alike(self, f"mean over {self.size} ranks", Request(sizes, operation))
        room = [*sizes, (torch.int64, SharedMean.flags_numel(self.size))]
        slots = self.flat_buffers(room, self.size, operation)
        own = [flats[:-1] for flats in slots]
        return SharedMean(self.counters, self.rank, own, slots[0][-1], operation)

    def _board(self, turn: int, rank: int) -> memoryview:
        start = (turn * self.size + rank) * _BOARD
        return self._boards[start : start + _BOARD]


def _nbytes(size: int) -> int:
    """Bytes of memory that a group of `size` ranks meets in."""
    return Counters.nbytes(size) + 2 * size * _BOARD + Whereabouts.nbytes(size)
