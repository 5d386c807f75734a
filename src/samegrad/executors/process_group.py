"""The ranks of a `torch.distributed` process group: CUDA devices over NCCL (over Gloo, the same steps on the CPU).

NCCL's own all-reduce fixes no order of additions. So each rank sends the r-th part of each of its subtrees to rank r
(all-to-all), which adds them up along the tree and sends the sum of its part to everyone (all-gather).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from samegrad.executors.base import FlatSizes
from samegrad.shards import Node, additions, subtrees

__all__ = ["ProcessGroup", "ProcessGroupTreeSum"]

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its older name


class ProcessGroup:
    """The default group of `torch.distributed`, which must be initialized; tensors live on `device`."""

    def __init__(self, device: torch.device) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.device = device

    def gather(self, record: bytes) -> list[bytes]:
        """Every rank's `record`, by rank."""
        length = torch.tensor([len(record)], device=self.device)
        lengths = torch.empty(self.size, dtype=length.dtype, device=self.device)
        _all_gather(lengths, length)
        longest = int(lengths.max())
        padded = torch.zeros(max(longest, 1), dtype=torch.uint8)
        padded[: len(record)] = torch.frombuffer(bytearray(record or b"\0"), dtype=torch.uint8)[: len(record)]
        received = torch.empty(self.size * padded.numel(), dtype=torch.uint8, device=self.device)
        _all_gather(received, padded.to(self.device))
        rows = received.view(self.size, -1).cpu()
        return [rows[rank, : int(lengths[rank])].numpy().tobytes() for rank in range(self.size)]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrites `tensors` with those of rank 0."""
        for tensor in tensors:
            whole = tensor.to(self.device).contiguous()
            dist.broadcast(whole, src=0)
            tensor.copy_(whole)

    def tree_sum(self, cut: Sequence[range], leaves: int, sizes: FlatSizes) -> ProcessGroupTreeSum:
        """A sum over `leaves` shards, of which rank r holds the range `cut[r]`."""
        return ProcessGroupTreeSum(self, cut, leaves, sizes)


class ProcessGroupTreeSum:
    """A sum over the ranks of a process group; see `base.TreeSum`."""

    def __init__(self, group: ProcessGroup, cut: Sequence[range], leaves: int, sizes: FlatSizes) -> None:
        self._group = group
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
        held = [[node for node in nodes if node in present] for nodes in self._held]
        own = [j for j, node in enumerate(self._held[self._group.rank]) if node in present]
        steps = additions([node for nodes in held for node in nodes], self._leaves)
        for flat, private in enumerate(out):
            if private.numel():
                total = self._reduce([self._slots[j][flat] for j in own], [len(nodes) for nodes in held], steps, flat)
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
