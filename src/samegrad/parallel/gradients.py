"""From the gradients of this rank's shards to the gradient of the minibatch in every parameter's `.grad`.

Shard gradients are taken out of `.grad` after each backward and added up along the tree. Where a shard is the right
sibling of the one before it, autograd adds its gradients to those of the sibling itself, parameter by parameter while
they are in the cache: the same addition, one pass over memory less. That is right only if a parameter gets its gradient
once in a backward (not so with re-entrant checkpointing), which is watched; if not, the rank's shards are run again
without it.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from samegrad.errors import TrainingError
from samegrad.executors import Exchange, Group
from samegrad.executors.base import fill_absent
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.executors.shared_pieces import SharedPieces
from samegrad.parallel.exchange import prepare_exchange
from samegrad.parallel.layout import FlatLayout
from samegrad.shards import Node, subtrees
from samegrad.strategy import Strategy
from samegrad.summation import RunningSum, Value
from samegrad.timeline import span

__all__ = ["GradientSum", "GradientTwice"]


class GradientTwice(Exception):
    """A parameter got its gradient in two parts; the shards of the rank must be run again, with `separate` set."""


class GradientSum:
    """The gradients of `parameters` (name, parameter) in steps whose shards the ranks of `group` compute.

    A step is: `begin`, then for each shard of this rank `enter`, backward, `leave`, then `finish`.
    own: the positions of the parameters whose sum this rank needs; None for all of them. strategy: how the sums of the
    ranks are added; None to leave that to samegrad.
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
        self._layout = FlatLayout(self._parameters)
        self._sum: Exchange | None = None
        self._pieces: SharedPieces | None = None
        self._own = None if own is None else list(own)
        # Private: what the user sees as .grad is never memory that another rank maps.
        self._views: list[Tensor] = []
        if group.size > 1 and parameters:
            private = self._layout.allocate(self._parameters[0].device)
            self._views = self._layout.views(private)
            sizes, operation = self._layout.sizes, "sum of gradients"
            if own is not None and strategy is None and isinstance(group, SharedMemoryGroup):
                self._pieces = group.prepare_pieces(cut, leaves, sizes, operation)
            else:
                self._sum = prepare_exchange(group, strategy, cut, leaves, sizes, operation, private)
        self._exchanges = self._sum or self._pieces
        self._slots: dict[int, list[Tensor | None]] = {}
        self._running = RunningSum(self._held, leaves)
        self._with_sibling = False
        # Autograd adds complex numbers in torch's way, not as pairs.
        self.separate = any(parameter.is_complex() for parameter in self._parameters)
        self._watched: set[int] = set()
        self._backward = 0
        self._twice = False

    def begin(self) -> None:
        """Starts a step; gradients of earlier ones are dropped."""
        self.separate = self.separate or self._has_hooks_of_others()
        self._running = RunningSum(self._held, self._leaves, self._slot_views if self._exchanges else None)
        self._set_gradients([None] * len(self._parameters))

    def enter(self, shard: int) -> None:
        """Makes `.grad` ready for the backward of `shard`."""
        sibling = None if self.separate else self._running.take_sibling(shard)
        self._with_sibling = sibling is not None
        if sibling is not None:
            self._watch()
            self._backward += 1
            self._set_gradients(sibling)

    def leave(self, shard: int, is_absent: bool) -> None:
        """Takes the gradients of `shard` out of `.grad`. Raises GradientTwice, see above."""
        if self._twice:
            self._twice, self.separate = False, True
            raise GradientTwice
        value: Value | None = None
        if not is_absent or self._with_sibling:
            value = [parameter.grad for parameter in self._parameters]
            for name, gradient in zip(self._names, value, strict=True):
                if gradient is not None and gradient.layout is not torch.strided:
                    raise TrainingError(
                        f"parameter {name} has a sparse gradient, which has no fixed order of additions; make it dense "
                        f"(Embedding(..., sparse=False))"
                    )
            value = [None if gradient is None else _alone(gradient) for gradient in value]
        self._set_gradients([None] * len(self._parameters))
        self._running.add(shard, value, with_sibling=self._with_sibling)

    def record(self) -> bytes:
        """One byte for each parameter: whether any shard of this rank used it."""
        used = bytearray(len(self._parameters))
        for _, value in self._running.values():
            for position, part in enumerate(value):
                used[position] |= part is not None
        return bytes(used)

    def finish(self, records: Sequence[bytes], present: Collection[Node]) -> None:
        """Sets `.grad` to the sum over all shards; None where no shard used the parameter, or it is not `own`.

        records: those of all ranks. present: the subtrees, of all ranks, that are not absent.
        """
        if self._exchanges is None:
            for _, value in self._running.values():
                self._set_gradients(value)
            return
        used = [any(flags) for flags in zip(*records, strict=True)]
        if self._pieces is not None:
            self._sum_own(self._pieces, self._own or [], used, present)
        elif self._sum is not None:
            for position, node in enumerate(subtrees(self._held, self._leaves)):
                if node not in present:
                    fill_absent(self._sum.slot(position))
            with span("sum of gradients", "exchange"):
                self._sum.start().wait()
            wanted = set(range(len(used)) if self._own is None else self._own)
            self._set_gradients(
                [view if used[place] and place in wanted else None for place, view in enumerate(self._views)]
            )

    def _sum_own(self, pieces: SharedPieces, own: list[int], used: Sequence[bool], present: Collection[Node]) -> None:
        """Sets `.grad` of the parameters `own`, whose gradients of this rank's shards are not in the slots."""
        kept = {node: [self._kept(value[p], self._views[p]) for p in own] for node, value in self._running.values()}
        flat_kept = {node: [_flat(part) for part in parts] for node, parts in kept.items()}
        ranges = [self._layout.piece(position) for position in own]
        with span("sum of gradients", "exchange"):
            sums = pieces.run(present, ranges, flat_kept, [_flat(self._views[position]) for position in own])
        gradients: Value = [None] * len(self._parameters)
        for number, position in enumerate(own):
            if used[position]:
                homes = [parts[number] for node, parts in kept.items() if flat_kept[node][number] is sums[number]]
                gradients[position] = homes[0] if homes else self._views[position]
        self._set_gradients(gradients)

    @staticmethod
    def _kept(part: Tensor | None, like: Tensor) -> Tensor:
        """`part` with the strides of `like`; if there is none, -0.0 everywhere, which changes no sum."""
        if part is not None and part.stride() == like.stride():
            return part
        copy = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
        if part is not None:
            return copy.copy_(part)
        (torch.view_as_real(copy) if copy.is_complex() else copy).fill_(-0.0)
        return copy

    def _set_gradients(self, value: Value) -> None:
        for parameter, gradient in zip(self._parameters, value, strict=True):
            parameter.grad = gradient

    def _slot_views(self, position: int) -> list[Tensor | None]:
        assert self._exchanges is not None
        flats = self._exchanges.slot(position)  # waits until the slot is free, so it is asked for every time
        if position not in self._slots:
            views: list[Tensor | None] = list(self._layout.views(flats))
            if self._pieces is not None:
                for own in self._own or ():  # only this rank needs those
                    views[own] = None
            self._slots[position] = views
        return self._slots[position]

    def _watch(self) -> None:
        """Has autograd tell when a parameter gets a gradient; parameters may be unfrozen at any time."""
        if len(self._watched) == len(self._parameters):
            return
        for position, parameter in enumerate(self._parameters):
            if parameter.requires_grad and position not in self._watched:
                self._watched.add(position)
                handle = parameter.register_post_accumulate_grad_hook(_Watcher(self))
                weakref.finalize(self, handle.remove)  # a model outlives the trainers it had

    def _has_hooks_of_others(self) -> bool:
        """Whether somebody else is told of gradients, who would see those of two shards as one."""
        hooks = (parameter._post_accumulate_grad_hooks or {} for parameter in self._parameters)
        return any(not isinstance(hook, _Watcher) for found in hooks for hook in found.values())

    def got_gradient(self, seen: int) -> int:
        """Called by a watcher that was last called in the backward `seen`; returns the present one."""
        self._twice |= self._with_sibling and seen == self._backward
        return self._backward


def _alone(gradient: Tensor) -> Tensor:
    """`gradient`, or a copy if somebody else sees its memory: from here on it is added to in place.

    Autograd hands out views of one memory as gradients of several parameters (of u and v in `u + v.view(8)`), and what
    a user's function returns may be a view of something of theirs.
    """
    gradient = gradient.resolve_conj().resolve_neg()
    owners = torch._C._storage_Use_Count(gradient.untyped_storage()._cdata)  # the gradient, and the object just made
    return gradient if owners <= 2 else gradient.clone(memory_format=torch.preserve_format)


def _flat(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor in the order of memory."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


class _Watcher:
    """Told by autograd each time that one parameter has got a gradient."""

    __slots__ = ("_seen", "_sum")

    def __init__(self, gradients: GradientSum) -> None:
        self._sum = weakref.ref(gradients)
        self._seen = 0

    def __call__(self, _: Tensor) -> None:
        if (gradients := self._sum()) is not None:
            self._seen = gradients.got_gradient(self._seen)
