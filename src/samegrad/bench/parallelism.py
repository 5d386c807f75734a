"""Independent work at the same time: on two devices, and of eight operations on one device.

A device is a GPU, or here a `DeviceQueue` of the CPU, which has a thread of its own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from samegrad.bench.conditions import conditions
from samegrad.bench.device import pair_of
from samegrad.bench.measuring import in_turns, one_thread
from samegrad.bench.result import Column, Progress, Result
from samegrad.machine import usable_cores
from samegrad.parallel.device_queue import DeviceQueue
from samegrad.timing import Spread
from samegrad.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["run"]

_OPERATIONS = 8
_MOST_QUEUES = 8

_Row = tuple[str, str, float, float, float | None]  # what, way, median and lowest seconds, speed-up
_ALONE, _ALL_THREADS = "one after the other", "one after the other, all threads in each"


def run(progress: Progress, devices: str = "cpu,cpu", size: int = 512, small: int = 48, repetitions: int = 7) -> Result:
    """Times products of `size` x `size` on two devices alone and together, and eight large and small ones on the first.

    devices: the names of two, with a comma; they may be the same.
    """
    first, second = pair_of(devices)
    cores = usable_cores()
    spread_over = min(cores if first.type == "cpu" else _MOST_QUEUES, _MOST_QUEUES)
    with one_thread(), contextlib.ExitStack() as closing:
        progress("two devices", 0.0)
        one, two = (closing.enter_context(DeviceQueue(device)) for device in (first, second))
        pair = in_turns(
            {
                "device 1 alone": functools.partial(_products, [one], size),
                "device 2 alone": functools.partial(_products, [two], size),
                "both together": functools.partial(_products, [one, two], size),
            },
            repetitions,
        )
        queues = [one, *(closing.enter_context(DeviceQueue(first)) for _ in range(spread_over - 1))]
        by_size: dict[int, Mapping[str, Spread]] = {}
        for place, rows in enumerate((size, small)):
            progress(f"eight products of {rows} × {rows}", 0.4 + 0.3 * place)
            by_size[rows] = _eight(queues, first, rows, repetitions, cores)
    table: list[_Row] = [("two devices", name, spread.median, spread.lowest, None) for name, spread in pair.items()]
    for rows, found in by_size.items():
        alone = found[_ALONE].median
        table += [
            (f"8 products of {rows} × {rows}", name, spread.median, spread.lowest, alone / spread.median)
            for name, spread in found.items()
        ]
    columns = (
        Column("what"),
        Column("way"),
        Column("time", format_seconds),
        Column("lowest", format_seconds, is_detail=True),
        Column("speed-up", lambda ratio: f"{ratio:.2f}"),
    )
    found_conditions = conditions(
        threads=1, repetitions=repetitions, device=first.type, devices=f"{first}, {second}", cores=cores
    )
    shows = _shows(pair, by_size)
    return Result(
        "Independent work at the same time", found_conditions, columns, table, shows, lambda f: _draw(table, f)
    )


def _products(queues: Sequence[DeviceQueue], size: int) -> None:
    """The same work on each of `queues`, given to all of them before any is waited for."""
    for queue in queues:
        queue.put(functools.partial(_work, queue.device, size))
    for queue in queues:
        queue.synchronize()


def _work(device: torch.device, size: int) -> None:
    X = torch.ones(size, size, device=device)
    for _ in range(_OPERATIONS):
        X @ X


def _eight(
    queues: Sequence[DeviceQueue], device: torch.device, size: int, repetitions: int, cores: int
) -> dict[str, Spread]:
    """Eight products that do not need each other, in each way of having them done."""
    X = [torch.ones(size, size, device=device) for _ in range(_OPERATIONS)]

    def serial() -> None:
        for each in X:
            torch.mm(each, each)

    def all_threads() -> None:
        torch.set_num_threads(cores)
        try:
            serial()
        finally:
            torch.set_num_threads(1)

    def spread() -> None:
        for number, each in enumerate(X):
            queues[number % len(queues)].put(functools.partial(torch.mm, each, each))
        for queue in queues:
            queue.synchronize()

    ways: dict[str, Callable[[], object]] = {_ALONE: serial}
    if device.type == "cpu" and cores > 1:
        ways[_ALL_THREADS] = all_threads
    ways[f"on {len(queues)} queues"] = spread
    return in_turns(ways, repetitions)


def _shows(pair: Mapping[str, Spread], by_size: Mapping[int, Mapping[str, Spread]]) -> str:
    """What the figures say."""
    alone = pair["device 1 alone"].median + pair["device 2 alone"].median
    gain = alone / pair["both together"].median
    text = f"Two devices together are {gain:.2f} × as fast as one after the other (2.00 is all there is to gain)"
    parts = []
    for size, found in by_size.items():
        best = min(found, key=lambda name: found[name].median)
        ratio = found[_ALONE].median / found[best].median
        gains = f"{best} is {ratio:.2f} × as fast" if best != _ALONE else "nothing beats one after the other"
        parts.append(f"of eight products of {size} × {size}, {gains}")
    return f"{text}; {'; '.join(parts)}."


def _draw(rows: Sequence[_Row], figure: Figure) -> None:
    """Times as bars, a picture for each kind of work."""
    kinds = list(dict.fromkeys(row[0] for row in rows))
    for axes, kind in zip(figure.subplots(len(kinds), 1), kinds, strict=True):
        mine = [row for row in rows if row[0] == kind]
        axes.barh([row[1] for row in mine], [1e3 * row[2] for row in mine])
        axes.invert_yaxis()
        axes.set(title=kind, xlabel="ms")
