"""From the gradients of this rank's shards to the gradient of the minibatch in every parameter's `.grad`.

Shard gradients are taken out of `.grad` after each backward and added up along the tree, bucket by bucket; during the
backward of the rank's last shard a bucket is added up as soon as it is complete, and its exchange is started.

Where a shard is the right sibling of the one before it, autograd adds its gradients to those of the sibling itself,
parameter by parameter while they are in the cache: the same addition, one pass over memory less. That is right only if
a parameter gets its gradient once in a backward (not so with re-entrant checkpointing), and so is starting a bucket
early. It is watched; if not, the shards are run again the plain way.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from samegrad.errors import TrainingError
from samegrad.executors import Group
from samegrad.executors.base import fill_absent
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.parallel.layout import FlatLayout
from samegrad.parallel.owned_gradients import OwnedGradients
from samegrad.parallel.reducer import Bucket, Reducer, Shares
from samegrad.shards import Node, subtrees
from samegrad.strategy import Strategy
from samegrad.summation import RunningSum, Value

__all__ = ["GradientSum", "GradientTwice"]


class GradientTwice(Exception):
    """A parameter got its gradient in two parts; the shards must be run again, from then on the plain way."""


class GradientSum:
    """The gradients of `parameters` (name, parameter) in steps whose shards the ranks of `group` compute.

    A step is: `begin`, then for each shard of this rank `enter`, backward, `leave`, then `record`, and `finish` with
    the records of all ranks. own: the positions of the parameters whose sum this rank needs; None for all of them.
    strategy: how the sums of the ranks are added; None to leave that to samegrad. Where that is at work on a thread,
    records must be gathered in another group.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        group: Group,
        cut: Sequence[range],
        leaves: int,
        own: Sequence[int] | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._held, self._leaves = cut[group.rank], leaves
        self._wanted = set(range(len(parameters)) if own is None else own)
        self._reducer: Reducer | None = None
        self._owned: OwnedGradients | None = None
        self._views: list[list[Tensor]] = []  # of the results, by bucket
        # What one running sum adds up: a bucket, or all parameters.
        self._parts: list[Sequence[int]] = [range(len(parameters))]
        if group.size > 1 and parameters:
            if own is not None and strategy is None and isinstance(group, SharedMemoryGroup):
                self._owned = OwnedGradients(self._parameters, group, cut, leaves, own)
            else:
                shares = Shares(group, cut, leaves, strategy)
                self._reducer = Reducer(parameters, shares, "sum of gradients", self._fill, self._private)
                self._parts = [bucket.positions for bucket in self._reducer.buckets]
        self._running: list[RunningSum] = []
        self._with_sibling = False
        # Autograd adds complex numbers in torch's way, not as pairs.
        self.separate = any(parameter.is_complex() for parameter in self._parameters)
        self._starts_early = self._reducer is not None
        self._last: int | None = None  # the last shard, while or after its backward
        self._is_last_absent = False
        self._watched: set[int] = set()
        self._backward = 0
        self._twice = False

    def begin(self) -> None:
        """Starts a step; gradients of earlier ones are dropped."""
        if self._has_hooks_of_others():
            self.separate, self._starts_early = True, False
        self._last = None
        if self._reducer is not None:
            self._reducer.begin()
        self._running = [RunningSum(self._held, self._leaves, self._place(part)) for part in range(len(self._parts))]
        self._set_gradients([None] * len(self._parameters))

    def enter(self, shard: int) -> None:
        """Makes `.grad` ready for the backward of `shard`."""
        siblings = [None] if self.separate else [running.take_sibling(shard) for running in self._running]
        self._with_sibling = siblings[0] is not None
        is_early = self._starts_early and shard == self._held[-1]
        if self._with_sibling or is_early:
            self._watch()
            self._backward += 1
        for part, sibling in zip(self._parts, siblings, strict=False):
            for position, gradient in zip(part, sibling or (), strict=False):
                self._parameters[position].grad = gradient
        self._last, self._is_last_absent = (shard, False) if is_early else (None, False)

    def leave(self, shard: int, is_absent: bool) -> None:
        """Takes the gradients of `shard` out of `.grad`. Raises GradientTwice, see above."""
        if self._twice and not (self._reducer is not None and self._reducer.started):
            self._run_plainly()
            raise GradientTwice
        if self._reducer is not None and shard == self._held[-1]:
            self._last, self._is_last_absent = shard, is_absent  # `_fill` does the rest
            return
        for part in range(len(self._parts)):
            self._add(part, shard, is_absent)

    def record(self) -> bytes:
        """What the other ranks must know; the exchanges of all buckets have been started then.

        One byte for each parameter: whether any shard of this rank used it; and one for a gradient in two parts.
        """
        if self._reducer is not None:
            self._reducer.start_rest()
        used = bytearray(len(self._parameters))
        for part, running in zip(self._parts, self._running, strict=True):
            for _, value in running.values():
                for position, gradient in zip(part, value, strict=True):
                    used[position] |= gradient is not None
        is_late = self._twice or (self._reducer is not None and bool(self._reducer.late))
        return bytes([*used, is_late])

    def finish(self, records: Sequence[bytes], present: Collection[Node]) -> None:
        """Sets `.grad` to the sum over all shards; None where no shard used the parameter, or it is not `own`.

        records: those of all ranks. present: the subtrees, of all ranks, that are not absent.
        Raises GradientTwice on all ranks alike: then all run their shards again.
        """
        if self._reducer is not None:
            self._reducer.finish()
            if any(record[-1] for record in records):
                self._run_plainly()
                raise GradientTwice
        if self._reducer is None and self._owned is None:
            for running in self._running:
                for _, value in running.values():
                    self._set_gradients(value)
            return
        used = [any(flags) for flags in zip(*(record[:-1] for record in records), strict=True)]
        if self._owned is not None:
            self._set_gradients(self._owned.sums(self._running[0].values(), used, present))
            return
        gradients: Value = [None] * len(used)
        for part, views in zip(self._parts, self._views, strict=True):
            for position, view in zip(part, views, strict=True):
                if used[position] and position in self._wanted:
                    gradients[position] = view
        self._set_gradients(gradients)

    def close(self) -> None:
        """Lets go of what was prepared with the other ranks; all of them call it."""
        if self._reducer is not None:
            self._reducer.close()

    def got_gradient(self, position: int, seen: int) -> int:
        """Called by a watcher that was last called in the backward `seen`; returns the present one."""
        self._twice |= self._with_sibling and seen == self._backward
        if self._last is not None and self._reducer is not None:
            self._reducer.arrived(position)
        return self._backward

    def _fill(self, bucket: Bucket) -> None:
        assert self._last is not None
        running = self._running[bucket.number]
        self._add(bucket.number, self._last, self._is_last_absent)
        present = {node for node, _ in running.values()}
        for number, node in enumerate(subtrees(self._held, self._leaves)):
            if node not in present:
                fill_absent(bucket.exchange.slot(number))

    def _add(self, part: int, shard: int, is_absent: bool) -> None:
        """Takes the gradients of one part out of `.grad`, into the running sum."""
        positions = self._parts[part]
        value: Value | None = None
        if not is_absent or self._with_sibling:
            value = [self._parameters[position].grad for position in positions]
            for position, gradient in zip(positions, value, strict=True):
                if gradient is not None and gradient.layout is not torch.strided:
                    raise TrainingError(
                        f"parameter {self._names[position]} has a sparse gradient, which has no fixed order of "
                        f"additions; make it dense (Embedding(..., sparse=False))"
                    )
            if self._reducer is None or shard != self._held[-1]:  # the last one is only read, see `RunningSum`
                value = [None if gradient is None else _alone(gradient) for gradient in value]
        for position in positions:
            self._parameters[position].grad = None
        self._running[part].add(shard, value, with_sibling=self._with_sibling)

    def _run_plainly(self) -> None:
        self._twice, self.separate, self._starts_early = False, True, False

    def _place(self, part: int) -> Callable[[int], Sequence[Tensor | None]] | None:
        """Where the complete subtrees of a part are to be written."""
        if self._owned is not None:
            return self._owned.slot
        return None if self._reducer is None else self._reducer.buckets[part].slot

    def _private(self, layout: FlatLayout) -> list[Tensor]:
        """Where an exchange leaves its result: what the user sees as .grad is never memory that another rank maps."""
        flats = layout.allocate(self._parameters[0].device)
        self._views.append(layout.views(flats))
        return flats

    def _set_gradients(self, value: Value) -> None:
        for parameter, gradient in zip(self._parameters, value, strict=True):
            parameter.grad = gradient

    def _watch(self) -> None:
        """Has autograd tell when a parameter gets a gradient; parameters may be unfrozen at any time."""
        if len(self._watched) == len(self._parameters):
            return
        for position, parameter in enumerate(self._parameters):
            if parameter.requires_grad and position not in self._watched:
                self._watched.add(position)
                handle = parameter.register_post_accumulate_grad_hook(_Watcher(self, position))
                weakref.finalize(self, handle.remove)  # a model outlives the trainers it had

    def _has_hooks_of_others(self) -> bool:
        """Whether somebody else is told of gradients, who would see those of two shards as one, or none any more."""
        hooks = (parameter._post_accumulate_grad_hooks or {} for parameter in self._parameters)
        return any(not isinstance(hook, _Watcher) for found in hooks for hook in found.values())


def _alone(gradient: Tensor) -> Tensor:
    """`gradient`, or a copy if somebody else sees its memory: from here on it is added to in place.

    Autograd hands out views of one memory as gradients of several parameters (of u and v in `u + v.view(8)`), and what
    a user's function returns may be a view of something of theirs.
    """
    gradient = gradient.resolve_conj().resolve_neg()
    owners = torch._C._storage_Use_Count(gradient.untyped_storage()._cdata)  # the gradient, and the object just made
    return gradient if owners <= 2 else gradient.clone(memory_format=torch.preserve_format)


class _Watcher:
    """Told by autograd each time that one parameter has got a gradient."""

    __slots__ = ("_position", "_seen", "_sum")

    def __init__(self, gradients: GradientSum, position: int) -> None:
        self._sum = weakref.ref(gradients)
        self._position, self._seen = position, 0

    def __call__(self, _: Tensor) -> None:
        if (gradients := self._sum()) is not None:
            self._seen = gradients.got_gradient(self._position, self._seen)
