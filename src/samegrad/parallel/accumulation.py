"""What stands in `.grad` between backwards, and what of it the other ranks know.

Autograd adds every gradient to what is in `.grad`. A part of that may have been exchanged by an earlier backward: it is
the same on all ranks, and must not be averaged again. Another may be this rank's alone, from backwards in `no_sync`. So
what was exchanged is set aside while a backward runs, which leaves in `.grad` what the others are to be told, and added
afterwards:

    before      .grad = earlier
    backward    .grad = own                  the gradients of this rank, also those from within no_sync
    exchange    sum over ranks of weight * own / sum over ranks of weight
    after       .grad = earlier + mean

Backwards without a weight add up, as in PyTorch. Those with weights are averaged, also over the backwards of one rank:
within `no_sync`, `.grad` then holds the weighted mean so far.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from samegrad.errors import TrainingError
from samegrad.summation import as_real

__all__ = ["ABSENT", "DENSE", "SPARSE", "Accumulation"]

ABSENT, DENSE, SPARSE = 0, 1, 2
"""What a rank has for a parameter."""

_STRIDED = torch.strided


class Accumulation:
    """The gradients of `parameters` on this rank. A backward is `begin`, then `keep` or, if exchanged, `give`."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._weight: float | None = None
        self._kinds = bytearray()
        self._earlier: list[Tensor | None] = []  # what all ranks know; nothing is set aside if empty
        self._mean: list[Tensor | None] = []  # of backwards with weights which nobody else knows
        self._mean_weight = 0.0
        self._has_own = False  # there is something of backwards without weights in .grad that nobody else knows

    @property
    def weight(self) -> float:
        """What this rank's gradients count."""
        return 1.0 if self._weight is None else self._weight + self._mean_weight

    @property
    def scale(self) -> float | None:
        """What `own` counts; None if it is not all that `write` writes, or counts nothing."""
        return None if self._mean or self._weight == 0 else 1.0 if self._weight is None else self._weight

    def begin(self, weight: float | None, is_exchanged: bool, is_fresh: bool) -> None:
        """A backward with `weight` begins, see `Listener.begin`. Raises TrainingError where weights do not fit."""
        self._weight = weight
        self._kinds = bytearray(len(self._parameters))
        found = [parameter.grad for parameter in self._parameters] if is_fresh else []
        if is_fresh and self._was_zeroed(found):
            self._forget()
        if self._has_own if weight is not None else self._mean:
            raise TrainingError(
                "some of the backwards whose gradients are accumulated had a weight, and some had none. Say it for "
                "all of them, or for none; or call zero_grad() in between"
            )
        if weight is None:
            if is_exchanged and is_fresh and not self._has_own:
                self._earlier = self._taken(found)
        elif not is_fresh:
            if self._mean or self._earlier or sum(parameter.grad is not None for parameter in self._parameters) > 1:
                raise TrainingError(
                    "a backward with a weight passes through no output of the wrapped module, so its gradients cannot "
                    "be told from those that were accumulated before. Call zero_grad() before it"
                )
        elif self._mean:
            self._mean = self._taken(found)
        else:
            self._earlier = self._taken(found)

    def own(self, position: int) -> Tensor | None:
        """The gradient that this rank tells the others, not yet multiplied by the weight; None if there is none, or it
        counts nothing. What was accumulated with weights before is not in it, see `write`."""
        return self._parameters[position].grad if self._weight is None or self._weight > 0 else None

    def kinds(self, unwritten: Iterable[int] = ()) -> bytes:
        """For each parameter, what this rank has: ABSENT, DENSE or SPARSE. unwritten: those that `write` is not asked
        for, or was too early."""
        for position in unwritten:
            self._kinds[position] = _kind(self.own(position))
        if not self._mean:
            return bytes(self._kinds)
        return bytes(map(max, self._kinds, map(_kind, self._mean)))

    def is_finite(self, position: int) -> bool:
        """Whether this rank's gradient of the parameter at `position` is finite."""
        own = self.weighted(position)
        return own is None or bool(torch.isfinite(own.coalesce().values() if own.is_sparse else own).all())

    def write(self, positions: Sequence[int], slots: Sequence[Tensor]) -> None:
        """Overwrites `slots` with weight * gradient of the parameters at `positions`; -0.0 where there is none."""
        counts = self._weight != 0
        found = [self._parameters[position].grad if counts else None for position in positions]
        kinds = [ABSENT if own is None else DENSE if own.layout is _STRIDED else SPARSE for own in found]
        for position, kind in zip(positions, kinds, strict=True):
            self._kinds[position] = kind
        targets, sources = list(slots), cast(list[Tensor], found)
        if kinds.count(DENSE) < len(kinds):
            for slot in itertools.compress(slots, [kind != DENSE for kind in kinds]):
                as_real(slot).fill_(-0.0)
            are_dense = [kind == DENSE for kind in kinds]
            targets, sources = (list(itertools.compress(each, are_dense)) for each in (targets, sources))
        if targets:
            torch._foreach_copy_(targets, sources)
            if self._weight is not None and self._weight != 1.0:
                torch._foreach_mul_([as_real(target) for target in targets], self._weight)
        if self._mean:
            for position, slot in zip(positions, slots, strict=True):
                mean = self._mean[position]
                if mean is not None and _is_dense(mean):
                    as_real(slot).add_(as_real(mean), alpha=self._mean_weight)

    def weighted(self, position: int) -> Tensor | None:
        """weight * gradient of one parameter as a new tensor, whatever its layout."""
        own, mean = self.own(position), self._mean[position] if self._mean else None
        total = None if own is None else own * (1.0 if self._weight is None else self._weight)
        if mean is None:
            return total
        return mean * self._mean_weight if total is None else total + mean * self._mean_weight

    def keep(self) -> None:
        """The backward has ended, and nobody else is told of its gradients."""
        if self._weight is None:
            self._has_own = True
            return
        weight = self.weight
        if weight == 0:  # nothing has counted so far
            self.give([None] * len(self._parameters))
            return
        means = [self.weighted(position) for position in range(len(self._parameters))]
        self._mean = [None if mean is None else mean / weight for mean in means]
        self._mean_weight = weight
        self._put(self._mean)

    def give(self, means: Sequence[Tensor | None]) -> None:
        """The backward has ended with these means over all ranks; None where no rank has a gradient."""
        if not self._earlier:
            self._put(means)
        else:
            self._put([_sum(earlier, mean) for earlier, mean in zip(self._earlier, means, strict=True)])
        self._forget()

    def _was_zeroed(self, found: Sequence[Tensor | None]) -> bool:
        """Whether the user has thrown away what was accumulated."""
        given = [gradient for gradient in found if gradient is not None]
        return not given or (bool(self._mean) and not any(bool(each.any()) for each in given if _is_dense(each)))

    def _forget(self) -> None:
        self._earlier, self._mean, self._mean_weight, self._has_own = [], [], 0.0, False

    def _taken(self, found: list[Tensor | None]) -> list[Tensor | None]:
        """What is `found` in `.grad`, which is None from then on."""
        if all(gradient is None for gradient in found):
            return []
        self._put([None] * len(found))
        return found

    def _put(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient


def _kind(gradient: Tensor | None) -> int:
    return ABSENT if gradient is None else DENSE if gradient.layout is torch.strided else SPARSE


def _is_dense(gradient: Tensor) -> bool:
    """Whether `gradient` has a number for each element of its parameter."""
    return gradient.layout is torch.strided


def _sum(earlier: Tensor | None, mean: Tensor | None) -> Tensor | None:
    if earlier is None or mean is None:
        return mean if earlier is None else earlier
    if earlier.requires_grad or not _is_dense(earlier):
        return earlier.detach() + mean
    return earlier.add_(mean)  # in place: somebody may hold it
