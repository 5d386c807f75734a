"""What shards do to a model's buffers (running statistics, counters, tables): the number of ranks never matters.

Every shard starts from the buffers as they were at the start of the step. Afterwards a floating buffer becomes the
weighted mean over the shards of what each made of it, added along the tree; an integer or boolean one becomes what the
first shard made of it. A buffer that no shard changed keeps its bits: a mean of equal values need not have them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from samegrad.errors import TrainingError
from samegrad.executors import Exchange, Group
from samegrad.executors.base import fill_absent
from samegrad.parallel.exchange import prepare_exchange
from samegrad.parallel.layout import FlatLayout
from samegrad.shards import Node, subtrees
from samegrad.summation import RunningSum, Value

__all__ = ["KeptBuffers", "ShardBuffers"]


class KeptBuffers:
    """The buffers of `model` as they are now, also those that stand in several places."""

    def __init__(self, model: nn.Module) -> None:
        self._kept = [
            (owner, key, buffer, buffer.clone())
            for owner in model.modules()
            for key, buffer in owner._buffers.items()
            if buffer is not None
        ]

    def put_back(self) -> None:
        """Gives them their values again, in the tensors that held them."""
        with torch.no_grad():
            for owner, key, buffer, value in self._kept:
                owner._buffers[key] = buffer
                buffer.copy_(value)


class ShardBuffers:
    """The buffers of `module` during steps whose shards this rank and others of `group` compute.

    A step is: `begin`, then for each shard of this rank `enter` and `leave`, then `finish` with the records of all.
    """

    def __init__(
        self, module: nn.Module, group: Group, cut: Sequence[range], leaves: int, device: torch.device
    ) -> None:
        self._places: list[tuple[str, nn.Module, str]] = []  # name, owner and key of each buffer
        for prefix, owner in module.named_modules():
            for key, buffer in owner._buffers.items():
                if buffer is not None:  # one that stands in several places may be replaced in any of them
                    self._places.append((f"{prefix}.{key}".lstrip("."), owner, key))
        self.tensors: list[Tensor] = [self._current(place) for place in range(len(self._places))]
        floating = [buffer.is_floating_point() or buffer.is_complex() for buffer in self.tensors]
        self._means = [place for place, is_floating in enumerate(floating) if is_floating]
        self._firsts = [place for place, is_floating in enumerate(floating) if not is_floating]
        self._group = group
        self._held, self._leaves = cut[group.rank], leaves
        self._layout = FlatLayout([self.tensors[place] for place in self._means])
        self._total = self._layout.allocate(device)
        self._sum: Exchange | None = None
        if group.size > 1 and self._means:
            self._sum = prepare_exchange(group, None, cut, leaves, self._layout.sizes, "mean of buffers", self._total)
        self._start: list[Tensor] = []
        self._running: RunningSum | None = None
        self._changed: set[int] = set()
        self._touched: set[int] = set()  # changed by the last shard
        self._first: dict[int, Tensor] = {}

    def begin(self) -> None:
        """Remembers the buffers as they are at the start of a step, also those that were assigned since the last."""
        for place, (name, _, _) in enumerate(self._places):
            now, before = self._current(place), self.tensors[place]
            if now is not before and (now.shape != before.shape or now.dtype != before.dtype):
                raise TrainingError(
                    f"buffer {name} was {list(before.shape)} {before.dtype} at first; now it is {list(now.shape)} "
                    f"{now.dtype}. Make a new Trainer, or wrap the model anew"
                )
            self.tensors[place] = now
        self._start = [buffer.clone() for buffer in self.tensors]
        views = None if self._sum is None else self._slot_views
        self._running = RunningSum(self._held, self._leaves, views)
        self._changed, self._touched, self._first = set(), set(), {}

    def enter(self) -> None:
        """Puts the buffers that the last shard changed back to the start of the step."""
        self._put_back(self._touched)

    def put_back(self) -> None:
        """Puts all buffers back to the start of the step, whatever has happened to them."""
        self._put_back(range(len(self._places)))

    def _put_back(self, places: Collection[int]) -> None:
        for place, (_, owner, key) in enumerate(self._places):
            owner._buffers[key] = self.tensors[place]
        if places:
            with torch.no_grad():
                # `.data`: a graph that is kept for another backward may hold buffers, and checks their versions.
                torch._foreach_copy_([self.tensors[p].data for p in places], [self._start[p] for p in places])
        self._touched = set()

    def leave(self, shard: int, fraction: float | None, is_first: bool) -> None:
        """Takes what `shard` made of the buffers; its part of the minibatch is `fraction`, None if it is absent.

        is_first: this is the first shard of the whole minibatch that is not absent.
        """
        if self._running is None or not self.tensors:
            return
        if fraction is None:
            self._running.add(shard, None)
            return
        now = [self._current(place) for place in range(len(self._places))]
        for place, (start, buffer) in enumerate(zip(self._start, now, strict=True)):
            if buffer.shape != start.shape or buffer.dtype != start.dtype:
                raise TrainingError(
                    f"buffer {self._places[place][0]} was {list(start.shape)} {start.dtype} at the start of the step; "
                    f"shard {shard} made it {list(buffer.shape)} {buffer.dtype}. Buffers must keep shape and dtype "
                    f"while training"
                )
            if not _same_bits(buffer, start):
                self._touched.add(place)
        self._changed |= self._touched
        with torch.no_grad():
            floating = [now[place].detach() for place in self._means]
            means: Value = list(torch._foreach_mul(floating, fraction)) if floating else []
        self._running.add(shard, means)
        if is_first:
            self._first = {place: now[place].detach().clone() for place in self._firsts if place in self._touched}

    def record(self) -> bytes:
        """What the other ranks must know: which buffers changed, and to what the first shard changed those it did."""
        places = range(len(self._places))
        flags = bytes((place in self._changed) | (place in self._first) << 1 for place in places)
        return flags + b"".join(_bytes(self._first[place]) for place in self._firsts if place in self._first)

    def finish(self, records: Sequence[bytes], present: Collection[Node], first_rank: int, total: float = 1.0) -> None:
        """Gives every buffer its value after the step, from the records of all ranks.

        present: the subtrees, of all ranks, that are not absent. first_rank: who computed the first shard. total: what
            all fractions add up to.
        """
        if self._running is None or not self.tensors:
            return
        count = len(self._places)
        flags = zip(*(record[:count] for record in records), strict=True)
        changed = {place for place, by_rank in enumerate(flags) if any(by_rank)}
        self.enter()
        if self._means:
            if self._sum is None:
                ((_, means),) = self._running.values()
            else:
                for position, node in enumerate(subtrees(self._held, self._leaves)):
                    if node not in present:
                        fill_absent(self._sum.slot(position))
                self._sum.start().wait()
                means = list(self._layout.views(self._total))
            for place, mean in zip(self._means, means, strict=True):
                if place in changed and mean is not None:
                    self.tensors[place].data.copy_(mean if total == 1.0 else mean / total)
        values = memoryview(records[first_rank])[count:]
        for place in self._firsts:
            if records[first_rank][place] & 2:  # else it keeps its value
                buffer = self.tensors[place]
                nbytes = buffer.numel() * buffer.element_size()
                raw = torch.frombuffer(bytearray(values[:nbytes]), dtype=torch.uint8)
                buffer.data.copy_(raw.view(buffer.dtype).view(buffer.shape))
                values = values[nbytes:]

    def close(self) -> None:
        """Lets go of what was prepared with the other ranks; all of them call it."""
        if self._sum is not None:
            self._sum.close()

    def _current(self, place: int) -> Tensor:
        _, owner, key = self._places[place]
        buffer = owner._buffers[key]
        if buffer is None:
            raise TrainingError(f"buffer {self._places[place][0]} was removed while training")
        return buffer

    def _slot_views(self, position: int) -> Sequence[Tensor | None]:
        assert self._sum is not None
        return self._layout.views(self._sum.slot(position))


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or torch.equal(_raw(a), _raw(b))  # NaN equals nothing, but a table may hold some


def _raw(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _bytes(tensor: Tensor) -> bytes:
    return _raw(tensor.cpu()).numpy().tobytes() if tensor.numel() else b""
