"""The means of gradients of ranks that share memory: computed after backward, by the cores that computed it.

The gradient of a large parameter is replaced by the mean where it is, so that a part of it moves through no other
memory, unless somebody else looks at it. All others, and those of parameters that this rank has not used, get memory
that is used again in the next backward.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from samegrad.executors.base import fill_absent
from samegrad.executors.shared_mean import Segment
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.parallel.accumulation import DENSE, Accumulation
from samegrad.parallel.backward_record import BackwardRecord
from samegrad.parallel.gradient_means import Gather
from samegrad.parallel.layout import ALIGNMENT, FlatLayout
from samegrad.parallel.private_gradients import PrivateGradients, are_unshared
from samegrad.parallel.reducer import short_name
from samegrad.summation import as_real
from samegrad.timeline import open_span, span

__all__ = ["SharedMeans"]

_LARGE = 1 << 16  # bytes; less is not worth looking at one by one


@dataclass(frozen=True, slots=True)
class _Run:
    """Numbers `start` to `stop` of flat buffer `flat`: the large parameter `at` this place, or several others."""

    flat: int
    start: int
    stop: int
    at: int | None = None


class SharedMeans:
    """See `GradientMeans`."""

    starts_early = False

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[nn.Parameter],
        positions: Sequence[int],
        group: SharedMemoryGroup,
        accumulation: Accumulation,
        operation: str,
    ) -> None:
        self._positions, self._accumulation = positions, accumulation
        self._parameters = [parameters[position] for position in positions]
        layout = FlatLayout(self._parameters)
        where = f"bucket 0 from {short_name(names[positions[-1]])} on" if positions else "no bucket"
        self._mean = group.prepare_mean(layout.sizes, f"{operation}, {where}")
        self._slots = layout.views(self._mean.slot())
        self._strides = [slot.stride() for slot in self._slots]
        self._private = PrivateGradients(layout, torch.device("cpu"))
        self._runs = _runs(layout, self._parameters)
        self._large = {run.at: run for run in self._runs if run.at is not None}
        self._small = [at for at in range(len(positions)) if at not in self._large]
        self._in_place: dict[int, Segment] = {}  # by place in `positions`: gradients whose memory is to be the mean's
        self._segments: list[Segment] = []
        self._views: list[Tensor] = []  # of private memory, for the others
        self._close_span: Callable[[], None] = open_span("bucket 0", "exchange")
        self.late: Collection[int] = ()
        self.where = f": {where}"

    @property
    def are_finite(self) -> bool:
        """See `GradientMeans`."""
        return self._mean.are_finite

    @property
    def unwritten(self) -> Sequence[int]:
        """See `GradientMeans`."""
        return [self._positions[at] for at in self._in_place]

    def begin(self) -> None:
        """See `GradientMeans.begin`."""
        self._in_place, self._segments, self._views = {}, [], []

    def arrived(self, at: int) -> None:
        """See `GradientMeans.arrived`; nothing is to be done."""

    def gathered(self, gather: Gather, is_absent: bool) -> list[BackwardRecord]:
        """See `GradientMeans.gathered`."""
        self._leave(is_absent)
        with span("other ranks", "waiting"):
            return gather()

    @torch.no_grad()
    def add_up(self, late: Collection[int], kinds: bytes, weight: float) -> None:
        """See `GradientMeans.add_up`; nothing is ever late."""
        in_place = self._in_place
        for at in [at for at in in_place if kinds[self._positions[at]] != DENSE]:
            self._mean.leave_own(in_place.pop(at))
        flats, self._views = self._private.room() if len(in_place) < len(self._positions) else ([], [])
        numbers = [as_real(flat).view(-1) for flat in flats]
        self._segments = [
            Segment(run.flat, run.start, numbers[run.flat][run.start : run.stop])
            if run.at is None or run.at not in in_place
            else in_place[run.at]
            for run in self._runs
        ]
        self._close_span = open_span("bucket 0", "exchange")
        self._mean.add_up(self._segments, weight)

    @torch.no_grad()
    def take(self) -> list[Tensor]:
        """See `GradientMeans.take`."""
        self._mean.take(self._segments)
        self._close_span()
        views, in_place = self._views, self._in_place
        self._views, self._segments, self._in_place = [], [], {}  # nothing here may look at private memory
        if not in_place:
            return views
        return [
            cast(Tensor, parameter.grad) if at in in_place else views[at]
            for at, parameter in enumerate(self._parameters)
        ]

    def close(self) -> None:
        """See `GradientMeans.close`."""
        self.begin()

    @torch.no_grad()
    def _leave(self, is_absent: bool) -> None:
        slot = self._mean.slot()
        if is_absent:
            fill_absent(slot)
            return
        self._in_place = self._replaceable()
        rest = [*self._small, *(at for at in self._large if at not in self._in_place)]
        self._accumulation.write([self._positions[at] for at in rest], [self._slots[at] for at in rest])
        for segment in self._in_place.values():
            self._mean.leave(segment)

    def _replaceable(self) -> dict[int, Segment]:
        """The large gradients that may become the mean where they are."""
        scale = self._accumulation.scale
        if scale is None:
            return {}
        plain = [at for at in self._large if self._is_plain(at)]
        found = {}
        for at, is_unshared in zip(plain, are_unshared([self._parameters[at] for at in plain]), strict=True):
            if is_unshared:
                gradient = cast(Tensor, self._parameters[at].grad)
                numbers = as_real(gradient.as_strided((gradient.numel(),), (1,))).view(-1)
                found[at] = Segment(self._large[at].flat, self._large[at].start, numbers, scale)
        return found

    def _is_plain(self, at: int) -> bool:
        """Whether the gradient of the parameter at this place lies in memory like its slot, and may be overwritten."""
        gradient = self._parameters[at].grad
        return (
            gradient is not None
            and type(gradient) is Tensor
            and gradient.layout is torch.strided
            and gradient.dtype is self._slots[at].dtype
            and gradient.stride() == self._strides[at]
            and gradient.data_ptr() % ALIGNMENT == 0
            and not (gradient.requires_grad or gradient.is_inference())
            and not (gradient.is_conj() or gradient.is_neg() or gradient._is_zerotensor())
        )


def _runs(layout: FlatLayout, parameters: Sequence[nn.Parameter]) -> list[_Run]:
    """All numbers of all parameters, in the order of the flat buffers."""
    runs: list[_Run] = []
    for flat in range(len(layout.sizes)):
        is_open = False
        for at, parameter in enumerate(parameters):
            number, start, stop = layout.piece(at)
            if number != flat:
                continue
            width = 2 if parameter.is_complex() else 1
            start, stop = start * width, stop * width
            if parameter.nbytes >= _LARGE:
                runs.append(_Run(flat, start, stop, at))
                is_open = False
            elif is_open:
                runs[-1] = _Run(flat, runs[-1].start, stop)
            else:
                runs.append(_Run(flat, start, stop))
                is_open = True
    return runs
