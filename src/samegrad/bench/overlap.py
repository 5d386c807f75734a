"""What runs while a device computes: copies, each while the next result is computed, and the exchange of gradients.

On a GPU a copy goes to pinned memory, `non_blocking`, on a stream of its own. On the CPU copies are done by a queue of
their own, from memory to memory. For gradients see `exchange_overlap`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from samegrad.bench.conditions import conditions
from samegrad.bench.device import device_of
from samegrad.bench.exchange_overlap import Load, exchange_times
from samegrad.bench.measuring import in_turns, one_thread
from samegrad.bench.result import Column, Progress, Result
from samegrad.parallel.device_queue import DeviceQueue
from samegrad.timing import Spread
from samegrad.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Overlap", "run"]

_PARTS = ("copies", "gradients")


@dataclass(frozen=True, slots=True)
class Overlap:
    """Seconds of computing alone, of the `other` work alone, of one after the other, and of both overlapped."""

    other: str
    compute: Spread
    alone: Spread
    one_by_one: Spread
    overlapped: Spread

    @property
    def ways(self) -> dict[str, Spread]:
        """What people call them."""
        names = ("compute", self.other, f"compute, then {self.other}", "overlapped")
        return dict(zip(names, (self.compute, self.alone, self.one_by_one, self.overlapped), strict=True))

    @property
    def hidden(self) -> float:
        """Which part, 0 to 1, of what can be hidden is: at best the longer of the two alone remains."""
        both, least = self.one_by_one.median, self.least
        return min(max((both - self.overlapped.median) / (both - least), 0.0), 1.0) if both > least else 0.0

    @property
    def least(self) -> float:
        """Seconds of the longer of the two alone."""
        return max(self.compute.median, self.alone.median)


def run(
    progress: Progress,
    device: str = "cpu",
    results: int = 12,
    size: int = 1024,
    inner: int = 64,
    load: Load | None = None,
    repetitions: int = 7,
) -> Result:
    """Times computing and copying `results` matrices of `size` x `size`, each a product over `inner` columns; and
    training steps of `load`."""
    load = load or Load()
    where = device_of(device)
    progress("computing and copying", 0.0)
    copies = _copies(where, results, size, inner, repetitions)
    progress("computing and exchanging gradients", 0.3)
    found = [copies, Overlap("exchange", *exchange_times(where, load, repetitions).values())]
    rows = [
        (part, way, spread.median, spread.lowest, spread.highest)
        for part, overlap in zip(_PARTS, found, strict=True)
        for way, spread in overlap.ways.items()
    ]
    columns = (
        Column("what"),
        Column("way"),
        Column("time", format_seconds),
        Column("lowest", format_seconds, is_detail=True),
        Column("highest", format_seconds, is_detail=True),
    )
    played = f"; computing: asleep for {format_seconds(load.layers * (load.forward_s + load.backward_s))}"
    return Result(
        f"Computing, copying and exchanging on {device}",
        conditions(
            threads=1,
            repetitions=repetitions,
            device=where.type,
            copies=f"{results} of {format_bytes(4 * size * size)}, products of {size} × {inner} by {inner} × {size}",
            gradients=f"{format_bytes(load.nbytes)} in {load.layers} layers, two ranks that send"
            + (f" over loopback{played}" if where.type == "cpu" else ""),
        ),
        columns,
        rows,
        _shows(found),
        lambda figure: _draw(found, figure),
    )


def _copies(where: torch.device, results: int, size: int, inner: int, repetitions: int) -> Overlap:
    pinned = where.type == "cuda"
    with one_thread(), DeviceQueue(where) as computing, DeviceQueue(where) as copying:
        A, B = torch.ones(size, inner, device=where), torch.ones(inner, size, device=where)
        made = [torch.empty(size, size, device=where) for _ in range(results)]
        copies = [torch.empty(size, size, pin_memory=pinned) for _ in range(results)]

        def compute(number: int) -> Tensor:
            return torch.mm(A, B, out=made[number])

        def copy(number: int) -> Tensor:
            return copies[number].copy_(made[number], non_blocking=pinned)

        def all_of(queue: DeviceQueue, work: Callable[[int], object]) -> None:
            for number in range(results):
                queue.put(functools.partial(work, number))
            queue.synchronize()

        def one_by_one() -> None:
            all_of(computing, compute)
            all_of(copying, copy)

        def compute_and_hand_on(number: int) -> None:
            compute(number)
            if pinned:
                torch.cuda.current_stream(where).synchronize()
            copying.put(functools.partial(copy, number))

        def overlapped() -> None:
            all_of(computing, compute_and_hand_on)
            copying.synchronize()

        found = in_turns(
            {
                "compute": functools.partial(all_of, computing, compute),
                "copy": functools.partial(all_of, copying, copy),
                "one by one": one_by_one,
                "overlapped": overlapped,
            },
            repetitions,
        )
    return Overlap("copy", *found.values())


def _shows(found: Sequence[Overlap]) -> str:
    """What the figures say."""
    return " ".join(_sentence(part, overlap) for part, overlap in zip(_PARTS, found, strict=True))


def _sentence(part: str, found: Overlap) -> str:
    hides = f"{part.capitalize()} hide behind computing"
    verdict = hides if found.hidden > 0.5 else f"Little is gained here with {part}"
    both, overlapped = found.one_by_one.median, found.overlapped.median
    return (
        f"{verdict}: one after the other takes {format_seconds(both)}, overlapped {format_seconds(overlapped)}, the "
        f"longer of the two alone {format_seconds(found.least)}: {100 * found.hidden:.0f} % of what can be hidden is."
    )


def _draw(found: Sequence[Overlap], figure: Figure) -> None:
    """Times as bars, with their spread."""
    for axes, part, overlap in zip(figure.subplots(1, 2), _PARTS, found, strict=True):
        spreads = list(overlap.ways.values())
        medians = [1e3 * spread.median for spread in spreads]
        low = [1e3 * (spread.median - spread.lowest) for spread in spreads]
        high = [1e3 * (spread.highest - spread.median) for spread in spreads]
        axes.barh(list(overlap.ways), medians, xerr=[low, high], capsize=3)
        axes.invert_yaxis()
        axes.set(title=part, xlabel="ms", xlim=(0, None))
