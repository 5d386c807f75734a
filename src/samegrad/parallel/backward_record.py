"""What a rank tells the others at the end of each exchanged backward, and what all conclude from it."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from samegrad.errors import TrainingError

__all__ = ["BackwardRecord", "check_agreement"]

_HEADER = struct.Struct("<????qdqq")


@dataclass(frozen=True, slots=True)
class BackwardRecord:
    """One rank's part in a backward.

    forwards: how many forward passes there were in training so far. weight: what its gradients count.
    late: the buckets that have got gradients after they were started. kinds: see `Accumulation.kinds`.
    buffers: see `ShardBuffers.record`.
    is_joined: this rank has no more batches. is_broken: its backward has raised an exception, and counts nothing.
    """

    forwards: int
    weight: float
    late: Collection[int]
    kinds: bytes
    buffers: bytes = b""
    is_training: bool = True
    is_joined: bool = False
    is_broken: bool = False

    def packed(self) -> bytes:
        """Bytes for `unpacked`."""
        late = b"".join(struct.pack("<q", number) for number in sorted(self.late))
        flags = self.is_training, self.is_joined, self.is_broken, False
        header = _HEADER.pack(*flags, self.forwards, self.weight, len(late), len(self.kinds))
        return header + late + self.kinds + self.buffers

    @classmethod
    def unpacked(cls, record: bytes) -> BackwardRecord:
        """The inverse of `packed`."""
        is_training, is_joined, is_broken, _, forwards, weight, length, count = _HEADER.unpack_from(record)
        late = record[_HEADER.size : _HEADER.size + length]
        rest = record[_HEADER.size + length :]
        numbers = frozenset(number for (number,) in struct.iter_unpack("<q", late))
        return cls(forwards, weight, numbers, rest[:count], rest[count:], is_training, is_joined, is_broken)


def check_agreement(records: Sequence[BackwardRecord], backward: str, needs_all: bool = False) -> None:
    """Raises TrainingError on all ranks alike where the records of all ranks do not fit together.

    needs_all: also where some ranks, but not all, have no more batches.
    """
    active = [(rank, record) for rank, record in enumerate(records) if not record.is_joined]
    if needs_all and 0 < len(active) < len(records):
        first_joined = next(rank for rank, record in enumerate(records) if record.is_joined)
        raise TrainingError(
            f"{backward}: rank {first_joined} has no more batches, rank {active[0][0]} has. That is an error in a "
            f"join with throw_on_early_termination=True; give all ranks the same number of batches, or leave it out"
        )
    broken = [rank for rank, record in active if record.is_broken]
    if broken and len(broken) < len(active):
        others = next(rank for rank, record in active if not record.is_broken)
        raise TrainingError(
            f"{backward}: on rank {broken[0]}, backward was broken off by an exception, and on rank {others} it was "
            f"not, so no rank has the sum. End the training on all ranks; rank {broken[0]}'s traceback says why"
        )
    for rank, record in active:
        first_rank, first = active[0]
        if record.is_training != first.is_training:
            modes = {True: "training", False: "eval"}
            raise TrainingError(
                f"{backward}: the model is in {modes[first.is_training]} mode on rank {first_rank}, in "
                f"{modes[record.is_training]} mode on rank {rank}. Call train() or eval() on all ranks alike"
            )
        if record.forwards != first.forwards:
            raise TrainingError(
                f"{backward}: rank {first_rank} has called forward {first.forwards} times in training, rank {rank} "
                f"{record.forwards} times. One of them has skipped a backward, or does more forward passes than the "
                f"other. All ranks must make the same calls; where one has nothing to learn from, give it a batch "
                f"without rows, or weight 0"
            )
