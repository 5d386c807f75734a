"""The ranks of a `torch.distributed` process group: CUDA devices over NCCL (over Gloo, the same steps on the CPU).

NCCL's own all-reduce fixes no order of additions. So each rank sends the r-th part of each of its subtrees to rank r
(all-to-all), which adds them up along the tree and sends the sum of its part to everyone (all-gather).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from samegrad.errors import GroupError
from samegrad.executors.base import FlatSizes
from samegrad.executors.operations import NAME_BYTES, check_operations, packed_name, tag, unpacked_name
from samegrad.executors.roll_call import RollCall
from samegrad.shards import Node, additions, subtrees

__all__ = ["ProcessGroup", "ProcessGroupTreeSum"]

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its older name


class ProcessGroup:
    """The default group of `torch.distributed`, which must be initialized; tensors live on `device`.

    meet: brings the ranks together for an operation by another way, which is asked before each sum. Without it only
        `gather` and `broadcast` compare operations; a sum follows a gather in every step.
    roll_call: finds out who is missing when an exchange fails. Without it torch's errors are raised as they are.
    """

    def __init__(
        self,
        device: torch.device,
        meet: Callable[[str], None] | None = None,
        roll_call: RollCall | None = None,
    ) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.device = device
        self.meet = meet
        self._roll_call = roll_call

    @contextlib.contextmanager
    def failures_explained(self) -> Iterator[None]:
        """Within, an error of torch becomes a GroupError that names the ranks which are missing."""
        try:
            yield
        except RuntimeError as error:
            if self._roll_call is None or isinstance(error, GroupError):
                raise
            raise self._roll_call.explain(error) from error

    def gather(self, record: bytes, operation: str) -> list[bytes]:
        """Every rank's `record`, by rank."""
        with self.failures_explained():
            return self._gather(record, self._agree(operation, len(record)))

    def _agree(self, operation: str, length: int = 0) -> list[int]:
        """The `length` of every rank. Raises CallMismatch on all of them if they are not at the same operation."""
        own = torch.tensor([length, tag(operation)], device=self.device)
        headers = torch.empty(2 * self.size, dtype=own.dtype, device=self.device)
        _all_gather(headers, own)
        lengths, tags = headers.view(self.size, 2).T.tolist()
        if len(set(tags)) > 1:
            names = self._gather(packed_name(operation), [NAME_BYTES] * self.size)
            check_operations([unpacked_name(name) for name in names])
        return list(lengths)

    def _gather(self, record: bytes, lengths: Sequence[int]) -> list[bytes]:
        longest = max(lengths)
        padded = torch.zeros(max(longest, 1), dtype=torch.uint8)
        padded[: len(record)] = torch.frombuffer(bytearray(record or b"\0"), dtype=torch.uint8)[: len(record)]
        received = torch.empty(self.size * padded.numel(), dtype=torch.uint8, device=self.device)
        _all_gather(received, padded.to(self.device))
        rows = received.view(self.size, -1).cpu()
        return [rows[rank, :length].numpy().tobytes() for rank, length in enumerate(lengths)]

    def broadcast(self, tensors: Sequence[Tensor], operation: str) -> None:
        """Overwrites `tensors` with those of rank 0."""
        with self.failures_explained():
            self._agree(operation)
            for tensor in tensors:
                whole = tensor.to(self.device).contiguous()
                dist.broadcast(whole, src=0)
                tensor.copy_(whole)

    def tree_sum(self, cut: Sequence[range], leaves: int, sizes: FlatSizes, operation: str) -> ProcessGroupTreeSum:
        """A sum over `leaves` shards, of which rank r holds the range `cut[r]`."""
        return ProcessGroupTreeSum(self, cut, leaves, sizes, operation)


class ProcessGroupTreeSum:
    """A sum over the ranks of a process group; see `base.TreeSum`."""

    def __init__(
        self, group: ProcessGroup, cut: Sequence[range], leaves: int, sizes: FlatSizes, operation: str
    ) -> None:
        self._group = group
        self._operation = operation
        self._leaves = leaves
        self._held = [subtrees(part, leaves) for part in cut]
        # Buffers are a multiple of the number of ranks long; what is beyond `numel` is never looked at.
        self._sizes = sizes
        self._parts = [-(-numel // group.size) for _, numel in sizes]
        self._slots = [
            [
                torch.zeros(part * group.size, dtype=dtype, device=group.device)
                for part, (dtype, _) in zip(self._parts, sizes, strict=True)
            ]
            for _ in self._held[group.rank]
        ]

    def slot(self, position: int) -> list[Tensor]:
        """See `base.TreeSum.slot`."""
        return [flat[:numel] for flat, (_, numel) in zip(self._slots[position], self._sizes, strict=True)]

    def run(self, present: Collection[Node], out: Sequence[Tensor]) -> None:
        """See `base.TreeSum.run`."""
        if self._group.meet is not None:
            self._group.meet(self._operation)
        held = [[node for node in nodes if node in present] for nodes in self._held]
        own = [j for j, node in enumerate(self._held[self._group.rank]) if node in present]
        steps = additions([node for nodes in held for node in nodes], self._leaves)
        for flat, private in enumerate(out):
            if private.numel():
                slots, counts = [self._slots[j][flat] for j in own], [len(nodes) for nodes in held]
                with self._group.failures_explained():
                    total = self._reduce(slots, counts, steps, flat)
                private.copy_(total[: private.numel()])

    def _reduce(self, own: list[Tensor], counts: list[int], steps: list[tuple[int, int]], flat: int) -> Tensor:
        size, part, dtype = self._group.size, self._parts[flat], self._sizes[flat][0]
        device = self._group.device
        # To rank r goes part r of each of my subtrees, in order; from rank q come counts[q] parts.
        sent = torch.stack([slot.view(size, part) for slot in own], dim=1) if own else torch.empty(0, dtype=dtype)
        received = torch.empty(sum(counts) * part, dtype=dtype, device=device)
        dist.all_to_all_single(
            received,
            sent.to(device).reshape(-1),
            output_split_sizes=[count * part for count in counts],
            input_split_sizes=[len(own) * part] * size,
        )
        values = list(received.view(-1, part))
        for i, j in steps:
            values[i] = values[i] + values[j]
        total = torch.empty(size * part, dtype=dtype, device=device)
        _all_gather(total, values[0].contiguous())
        return total
