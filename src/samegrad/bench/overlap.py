"""Copies that run while the device computes: each result is copied while the next one is being computed.

On a GPU that is a copy to pinned memory, `non_blocking`, on a stream of its own. On the CPU copies are done by a queue
of their own, from memory to memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from samegrad.bench.conditions import conditions
from samegrad.bench.device import device_of
from samegrad.bench.measuring import in_turns, one_thread
from samegrad.bench.result import Column, Progress, Result
from samegrad.parallel.device_queue import DeviceQueue
from samegrad.timing import Spread
from samegrad.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["run"]

_COMPUTE, _COPY, _ONE_BY_ONE, _OVERLAPPED = "compute", "copy", "compute, then copy", "overlapped"


def run(
    progress: Progress, device: str = "cpu", results: int = 12, size: int = 1024, inner: int = 64, repetitions: int = 7
) -> Result:
    """Times computing and copying `results` matrices of `size` x `size`, each a product over `inner` columns."""
    where = device_of(device)
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

        progress("computing and copying", 0.0)
        found = in_turns(
            {
                _COMPUTE: functools.partial(all_of, computing, compute),
                _COPY: functools.partial(all_of, copying, copy),
                _ONE_BY_ONE: one_by_one,
                _OVERLAPPED: overlapped,
            },
            repetitions,
        )
    rows = [(name, spread.median, spread.lowest, spread.highest) for name, spread in found.items()]
    columns = (
        Column("way"),
        Column("time", format_seconds),
        Column("lowest", format_seconds),
        Column("highest", format_seconds),
    )
    described = f"{results} of {format_bytes(4 * size * size)}, products of {size} × {inner} by {inner} × {size}"
    return Result(
        f"Computing and copying on {device}",
        conditions(threads=1, repetitions=repetitions, device=where.type, results=described),
        columns,
        rows,
        _shows(found),
        lambda figure: _draw(found, figure),
    )


def _shows(found: Mapping[str, Spread]) -> str:
    """What the figures say."""
    compute, copy, both, overlapped = (found[name].median for name in (_COMPUTE, _COPY, _ONE_BY_ONE, _OVERLAPPED))
    least = max(compute, copy)
    hidden = (both - overlapped) / (both - least) if both > least else 0.0
    verdict = "Copies hide behind computing" if hidden > 0.5 else "Little is gained here by copying meanwhile"
    return (
        f"{verdict}: overlapped, computing and copying take {format_seconds(overlapped)}, one after the other "
        f"{format_seconds(both)}; the longer of the two alone takes {format_seconds(least)}, so "
        f"{100 * min(max(hidden, 0.0), 1.0):.0f} % of what could be hidden is."
    )


def _draw(found: Mapping[str, Spread], figure: Figure) -> None:
    """Times as bars, with their spread."""
    axes = figure.subplots()
    medians = [1e3 * spread.median for spread in found.values()]
    low = [1e3 * (spread.median - spread.lowest) for spread in found.values()]
    high = [1e3 * (spread.highest - spread.median) for spread in found.values()]
    axes.barh(list(found), medians, xerr=[low, high], capsize=3)
    axes.invert_yaxis()
    axes.set(xlabel="ms")
