"""One exchanged backward of a wrapped model: from the gradients of the ranks to their weighted mean in `.grad`.

    begin      what was exchanged before is set aside (`Accumulation`)
    `Tell`     gradients arrive; across hosts, buckets that are complete are started (`GradientMeans`)
    end        records are gathered; sum / weight into `.grad`; sparse gradients; buffers

All ranks go through `end` alike, whatever happened to them before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from samegrad.errors import TrainingError
from samegrad.executors import Group
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.parallel.accumulation import DENSE, SPARSE, Accumulation
from samegrad.parallel.backward import Tell
from samegrad.parallel.backward_record import BackwardRecord, check_agreement
from samegrad.parallel.buffers import ShardBuffers
from samegrad.parallel.gradient_means import BucketMeans, GradientMeans
from samegrad.parallel.loop_spans import LoopSpans
from samegrad.parallel.parameters import compare
from samegrad.parallel.reducer import Shares
from samegrad.parallel.shared_means import SharedMeans
from samegrad.parallel.sparse_sum import gathered_sum
from samegrad.shards import subtrees
from samegrad.strategy import Strategy

__all__ = ["GradientSync"]

_KEPT = 4  # `GradientMeans`, each for a set of parameters that are trained


class GradientSync:
    """The backwards of a model with `parameters` (name, parameter), and `buffers` if those are to be equal.

    name: of the model, for messages. is_training: asked about the mode of the model. weight: what the gradients of the
    next backward count, None for one. on_backward: called at the end of each exchanged one, with how many there
    were. is_wanted: see `Listener`. forwards: counted by who calls them.
    needs_all: whether a backward in which a rank has no batch is an error.
    non_finite: the ranks on which the last backward made a gradient that is not finite, with the first parameter.
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[tuple[str, nn.Parameter]],
        group: Group,
        strategy: Strategy | None,
        buffers: ShardBuffers | None,
        is_training: Callable[[], bool],
        on_backward: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._name = name
        self._names = [each for each, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        cut = [range(rank, rank + 1) for rank in range(group.size)]
        self._group, self._shares = group, Shares(group, cut, group.size, strategy)
        self._nodes = [subtrees(part, group.size)[0] for part in cut]
        self._buffers, self._is_training, self._on_backward = buffers, is_training, on_backward
        self._accumulation = Accumulation(self._parameters)
        self._kept: dict[bytes, GradientMeans] = {}
        self._trained: list[int] = []  # positions of the parameters whose means `_means` are
        self._is_trained = b""  # for each parameter
        self._index: list[int] = []  # for each parameter its place in `_trained`, or -1
        self._means: GradientMeans | None = None
        self._loose: set[int] = set()
        self._arrived: list[int] = []  # positions of what has got a gradient in this backward
        self.spans = LoopSpans(parameters[0][1].device if parameters else torch.device("cpu"))
        self._is_exchanged = False
        self._is_joined = False
        self._have_buffers_begun = False
        self._backwards = 0
        self.is_wanted = True
        self.weight: float | None = None
        self.forwards = 0
        self.last_active = 0
        self.needs_all = False
        self.non_finite: dict[int, str] = {}

    def expect_sparse(self, parameters: Sequence[Tensor]) -> None:
        """Leaves `parameters` out of the buckets, which would have room for all of their elements."""
        wanted = set(map(id, parameters))
        self._loose = {at for at, parameter in enumerate(self._parameters) if id(parameter) in wanted}

    def begin_buffers(self) -> None:
        """Forward is about to be called in training, and may change buffers."""
        if self._buffers is not None and not self._have_buffers_begun:
            self._have_buffers_begun = True
            self._buffers.begin()

    def begin(self, is_exchanged: bool, is_fresh: bool) -> Tell:
        """See `Listener.begin`."""
        self.spans.backward_begins()
        self._is_exchanged = False
        is_exchanged = is_exchanged and (self._group.size > 1 or self.weight is not None)
        self._accumulation.begin(self.weight, is_exchanged, is_fresh)
        self._arrived = []
        if not is_exchanged:
            return self._arrived.append
        means = self._begin_exchange()
        if not means.starts_early:
            return self._arrived.append
        append, index, start_if_complete = self._arrived.append, self._index, means.arrived

        def tell(position: int) -> None:
            append(position)
            if index[position] >= 0:
                start_if_complete(index[position])

        return tell

    def _begin_exchange(self) -> GradientMeans:
        means = self._chosen_means()
        self._is_exchanged = True
        means.begin()
        return means

    def end(self) -> None:
        """See `Listener.end`. Raises TrainingError if a gradient that this backward has made is gone already."""
        self.spans.backward_ends()
        if self._is_exchanged:
            gone = [self._names[at] for at in self._arrived if self._parameters[at].grad is None]
            self._finish()
            self.spans.step_ends()
            if gone:
                raise TrainingError(
                    f"backward {self._backwards - 1} of {self._name}: something has taken the gradient of {min(gone)} "
                    f"away before it was exchanged: a hook that updates the parameter during backward, say, by the "
                    f"gradient of this rank alone. Call the optimizer after backward"
                )
        else:
            self._accumulation.keep()

    def broken_off(self) -> None:
        """See `Listener.broken_off`. Raises TrainingError, on all ranks, unless that has happened on all of them."""
        self.spans.backward_ends()
        if self._is_exchanged:
            self._finish(is_broken=True)
        else:
            self._accumulation.give([None] * len(self._parameters))

    def take_part(self) -> bool:
        """A backward of the other ranks, to which this one has no batch any more; False if no rank has one."""
        self._is_joined = True
        try:
            self._begin_exchange()
            return self._finish()
        finally:
            self._is_joined = False

    @property
    def _backward(self) -> str:
        return f"backward {self._backwards} of {self._name}"

    def _finish(self, is_broken: bool = False) -> bool:
        assert self._means is not None
        means, self._is_exchanged = self._means, False
        try:
            records = means.gathered(lambda: self._gather(means, is_broken), self._is_joined)
            check_agreement(records, self._backward, self.needs_all)
            found = self._computed(means, records)
        except BaseException:
            self._accumulation.give([None] * len(self._parameters))
            self._have_buffers_begun = False
            raise
        if not self._is_joined:
            self._accumulation.give(found)
        self._finish_buffers(records)
        self._backwards += 1
        active = [rank for rank, record in enumerate(records) if not record.is_joined]
        self.last_active = active[0] if active else self.last_active
        if len(active) == len(records):  # one that has left its loop gets the model at the end
            self._on_backward(self._backwards)
        return bool(active)

    def _gather(self, means: GradientMeans, is_broken: bool) -> list[BackwardRecord]:
        weight = 0.0 if self._is_joined or is_broken else self._accumulation.weight
        unwritten = [*self._loose, *means.unwritten]
        kinds = bytes(len(self._parameters)) if self._is_joined else self._accumulation.kinds(unwritten)
        buffers = b""
        if self._buffers is not None:
            self.begin_buffers()
            self._buffers.leave(self._group.rank, weight if weight > 0 else None, is_first=True)
            buffers = self._buffers.record()
        own = BackwardRecord(
            self.forwards,
            weight,
            means.late,
            kinds,
            buffers,
            self._is_training(),
            self._is_joined,
            is_broken,
        )
        return list(map(BackwardRecord.unpacked, self._group.gather(own.packed(), self._backward + means.where)))

    def _computed(self, means: GradientMeans, records: Sequence[BackwardRecord]) -> list[Tensor | None]:
        """The mean of each parameter's gradient; None where no rank has one."""
        kinds = records[0].kinds
        if any(record.kinds != kinds for record in records):
            kinds = bytes(map(max, *(record.kinds for record in records)))
        weight = math.fsum(record.weight for record in records)
        found: list[Tensor | None] = [None] * len(self._parameters)
        if 0 in self._is_trained:  # what is frozen keeps what it has
            found = [None if parameter.requires_grad else parameter.grad for parameter in self._parameters]
        if weight == 0:
            return found
        means.add_up({number for record in records for number in record.late}, kinds, weight)
        for position, parameter in enumerate(self._parameters if self._loose or SPARSE in kinds else ()):
            if parameter.requires_grad and (kinds[position] == SPARSE or position in self._loose):
                own = None if self._is_joined else self._accumulation.weighted(position)
                total = gathered_sum(self._group, own, parameter, f"{self._backward}: {self._names[position][-60:]}")
                found[position] = None if total is None else total / weight
        self._name_non_finite(means.are_finite)
        for position, mean in zip(self._trained, means.take(), strict=True):
            if kinds[position] == DENSE:
                found[position] = mean
        return found

    def _name_non_finite(self, are_finite: bool) -> None:
        self.non_finite = {}
        if are_finite:  # the same answer on all ranks
            return
        own = next((name for at, name in enumerate(self._names) if not self._accumulation.is_finite(at)), "")
        found = self._group.gather(b"" if self._is_joined else own.encode(), f"{self._backward}: not finite")
        self.non_finite = {rank: record.decode() for rank, record in enumerate(found) if record}

    def _finish_buffers(self, records: Sequence[BackwardRecord]) -> None:
        weights = [record.weight for record in records]
        live = [rank for rank, weight in enumerate(weights) if weight > 0]
        if self._buffers is None or not live:
            return
        present = {self._nodes[rank] for rank in live}
        self._have_buffers_begun = False
        self._buffers.finish([record.buffers for record in records], present, live[0], math.fsum(weights))

    def _chosen_means(self) -> GradientMeans:
        """Those for the parameters that are trained now; new ones are prepared by all ranks together."""
        trained = bytes([parameter.requires_grad for parameter in self._parameters])
        if trained not in self._kept:
            names = [name for name, is_trained in zip(self._names, trained, strict=True) if is_trained]
            doing = f"{self._backward}: comparing what is trained"
            compare(names, self._group, doing)
            if len(self._kept) == _KEPT:
                self._kept.pop(next(iter(self._kept))).close()
            self._kept[trained] = self._new_means(self._in_buckets(trained))
        means = self._kept[trained]
        if means is not self._means:
            self._means, self._trained, self._is_trained = means, self._in_buckets(trained), trained
            self._index = [-1] * len(trained)
            for at, position in enumerate(self._trained):
                self._index[position] = at
        return means

    def _in_buckets(self, trained: bytes) -> list[int]:
        return [at for at, is_trained in enumerate(trained) if is_trained and at not in self._loose]

    def _new_means(self, positions: Sequence[int]) -> GradientMeans:
        operation, group, device = f"gradients of {self._name}", self._group, self._parameters[0].device
        if isinstance(group, SharedMemoryGroup) and self._shares.are_sharded:  # all ranks compute on the CPU then
            return SharedMeans(self._names, self._parameters, positions, group, self._accumulation, operation)
        return BucketMeans(
            self._names, self._parameters, positions, self._shares, self._accumulation, operation, device
        )
