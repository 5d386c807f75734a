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
from samegrad.executors import Group
from samegrad.executors.base import Piece
from samegrad.parallel.layout import FlatLayout
from samegrad.shards import Node
from samegrad.summation import RunningSum, Value

__all__ = ["GradientSum", "GradientTwice"]


class GradientTwice(Exception):
    """A parameter got its gradient in two parts; the shards of the rank must be run again, with `separate` set."""


class GradientSum:
    """The gradients of `parameters` (name, parameter) in steps whose shards the ranks of `group` compute.

    A step is: `begin`, then for each shard of this rank `enter`, backward, `leave`, then `finish`.
    own: the positions of the parameters whose sum this rank needs; None for all of them.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        group: Group,
        cut: Sequence[range],
        leaves: int,
        own: Sequence[int] | None = None,
    ) -> None:
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._held, self._leaves = cut[group.rank], leaves
        self._layout = FlatLayout(self._parameters)
        self._sum = group.tree_sum(cut, leaves, self._layout.sizes) if group.size > 1 and parameters else None
        self._pieces: list[Piece] | None = None if own is None else self._layout.pieces(own)
        self._own = set(range(len(parameters)) if own is None else own)
        # Private: what the user sees as .grad is never memory that another rank maps.
        self._private: list[Tensor] = []
        self._views: list[Tensor] = []
        if self._sum is not None:
            self._private = self._layout.allocate(self._parameters[0].device)
            self._views = self._layout.views(self._private)
        self._slots: dict[int, list[Tensor]] = {}
        self._running = RunningSum(self._held, leaves)
        self._with_sibling = False
        self.separate = False
        self._watched: set[int] = set()
        self._backward = 0
        self._twice = False

    def begin(self) -> None:
        """Starts a step; gradients of earlier ones are dropped."""
        self.separate = self.separate or self._has_hooks_of_others()
        self._running = RunningSum(self._held, self._leaves, self._slot_views if self._sum is not None else None)
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
        if self._sum is None:
            for _, value in self._running.values():
                self._set_gradients(value)
            return
        self._sum.run(present, self._private, self._pieces)
        self._set_gradients(
            [
                view if position in self._own and any(record[position] for record in records) else None
                for position, view in enumerate(self._views)
            ]
        )

    def _set_gradients(self, value: Value) -> None:
        for parameter, gradient in zip(self._parameters, value, strict=True):
            parameter.grad = gradient

    def _slot_views(self, position: int) -> list[Tensor]:
        assert self._sum is not None
        flats = self._sum.slot(position)  # waits until the slot is free, so it is asked for every time
        if position not in self._slots:
            self._slots[position] = self._layout.views(flats)
        return self._slots[position]

    def _watch(self) -> None:
        """Has autograd tell when a parameter gets a gradient; parameters may be unfrozen at any time."""
        if len(self._watched) == len(self._parameters):
            return
        for position, parameter in enumerate(self._parameters):
            if parameter.requires_grad and position not in self._watched:
                self._watched.add(position)
                parameter.register_post_accumulate_grad_hook(_Watcher(self))

    def _has_hooks_of_others(self) -> bool:
        """Whether somebody else is told of gradients, who would see those of two shards as one."""
        hooks = (parameter._post_accumulate_grad_hooks or {} for parameter in self._parameters)
        return any(not isinstance(hook, _Watcher) for found in hooks for hook in found.values())

    def got_gradient(self, seen: int) -> int:
        """Called by a watcher that was last called in the backward `seen`; returns the present one."""
        self._twice |= self._with_sibling and seen == self._backward
        return self._backward


class _Watcher:
    """Told by autograd each time that one parameter has got a gradient."""

    __slots__ = ("_seen", "_sum")

    def __init__(self, gradients: GradientSum) -> None:
        self._sum = weakref.ref(gradients)  # a model outlives the trainers it had
        self._seen = 0

    def __call__(self, _: Tensor) -> None:
        if (gradients := self._sum()) is not None:
            self._seen = gradients.got_gradient(self._seen)
