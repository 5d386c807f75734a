"""Queueing and finishing: what a call takes to return, and what it takes until the device is done.

On a GPU, calls return when the work is queued. On a CPU plain torch computes within the call; with a `DeviceQueue` it
does not. n operations then cost t1 + n·t2 + t3 (giving, computing, waiting), where waiting after each costs
n·(t1 + t2 + t3). And a front end that runs far ahead holds the memory of all that it has queued, unless it is limited.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from samegrad.bench.conditions import conditions
from samegrad.bench.device import device_of
from samegrad.bench.measuring import in_turns, one_thread
from samegrad.bench.result import Cell, Column, Progress, Result
from samegrad.parallel.device_queue import DeviceQueue
from samegrad.timing import Spread, synchronize
from samegrad.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["run"]

_LIMITS = (None, 8, 2, 1)
_OFTEN = 4  # as many repetitions of what takes little time
_HELD = 1 << 20  # elements of what each queued operation holds

Row = tuple[Cell, ...]
"""Part, way, operations, seconds until the calls have returned, seconds until all is done, bytes held."""


def run(
    progress: Progress,
    device: str = "cpu",
    operations: int = 32,
    size: int = 256,
    repetitions: int = 7,
) -> Result:
    """Times up to `operations` products of `size` x `size` matrices on `device`, on one CPU thread."""
    where = device_of(device)
    with one_thread(), DeviceQueue(where) as queue:
        progress("queueing and finishing", 0.0)
        rows = _finishing(where, queue, operations, size, repetitions)
        progress("n operations", 0.3)
        counts = sorted(
            {1, *(operations >> shift for shift in range(operations.bit_length()) if operations >> shift > 1)}
        )
        together, each = _by_count(where, queue, counts, size // 2, _OFTEN * repetitions)
        rows += [("n operations", "wait at the end", n, None, spread.lowest, None) for n, spread in together.items()]
        rows += [("n operations", "wait after each", n, None, spread.lowest, None) for n, spread in each.items()]
        progress("running ahead", 0.7)
        rows += _running_ahead(where, operations)
    columns = (
        Column("part"),
        Column("way"),
        Column("operations"),
        Column("returned after", format_seconds),
        Column("done after", format_seconds),
        Column("held", format_bytes),
    )
    slope, steep = _slope(together), _slope(each)
    found = conditions(
        threads=1,
        repetitions=repetitions,
        device=where.type,
        product=f"{size} × {size}; n operations: {size // 2} × {size // 2}, the lowest times",
        numpy="with as many threads as it takes",
        fit=f"t2 = {format_seconds(slope)}, t1 + t3 = {format_seconds(steep - slope)}"
        if steep > slope
        else "t2 and t1 + t3 cannot be told apart: other programs took the processor",
    )
    title = f"Queueing and finishing on {device}"
    return Result(title, found, columns, rows, _shows(rows, slope, steep), lambda f: _draw(together, each, rows, f))


def _finishing(where: torch.device, queue: DeviceQueue, count: int, size: int, repetitions: int) -> list[Row]:
    """The same products in each way: when the calls have returned, and when the work is done."""
    plain = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    X = torch.from_numpy(plain.copy()).to(where)

    def by_numpy() -> None:
        for _ in range(count):
            np.dot(plain, plain)

    def by_torch() -> None:
        for _ in range(count):
            torch.mm(X, X)

    def queued() -> None:
        for _ in range(count):
            queue.put(functools.partial(torch.mm, X, X))

    ways: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "NumPy": (by_numpy, lambda: None),
        f"torch on {where.type}": (by_torch, lambda: synchronize(None)),
        f"torch on {where.type}, queued": (queued, queue.synchronize),
    }
    if where.type == "cuda":
        del ways[f"torch on {where.type}, queued"]  # a GPU has a queue anyway
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(repetitions + 1):
        for name, (give, wait) in ways.items():
            start = time.perf_counter()
            give()
            returned = time.perf_counter() - start
            wait()
            times[name].append((returned, time.perf_counter() - start))
    medians = {
        name: [Spread.of(each[which] for each in pairs[1:]).median for which in (0, 1)] for name, pairs in times.items()
    }
    return [("finishing", name, count, returned, done, None) for name, (returned, done) in medians.items()]


def _by_count(
    where: torch.device, queue: DeviceQueue, counts: Sequence[int], size: int, repetitions: int
) -> tuple[dict[int, Spread], dict[int, Spread]]:
    """Seconds for n operations, by n: waiting at the end, and waiting after each."""
    X = torch.ones(size, size, device=where)
    work = functools.partial(torch.mm, X, X)

    def at_the_end(count: int) -> None:
        for _ in range(count):
            queue.put(work)
        queue.synchronize()

    def after_each(count: int) -> None:
        for _ in range(count):
            queue.put(work)
            queue.synchronize()

    ways: dict[str, Callable[[], object]] = {}
    for n in counts:
        ways[f"{n} end"] = functools.partial(at_the_end, n)
        ways[f"{n} each"] = functools.partial(after_each, n)
    found = in_turns(ways, repetitions)
    return {n: found[f"{n} end"] for n in counts}, {n: found[f"{n} each"] for n in counts}


def _running_ahead(where: torch.device, count: int) -> list[Row]:
    """How much memory queued operations hold, by the limit on how many may be unfinished."""
    rows: list[Row] = []
    for limit in _LIMITS:
        alive, most = 0, 0

        def gone() -> None:
            nonlocal alive
            alive -= 1

        start = time.perf_counter()
        with DeviceQueue(where, limit) as queue:
            for _ in range(count):
                given = torch.ones(_HELD, device=where)
                alive += 1
                most = max(most, alive)
                weakref.finalize(given, gone)
                queue.put(functools.partial(_work, [given]))
                del given
            returned = time.perf_counter() - start
            queue.synchronize()
            done = time.perf_counter() - start
        way = "no limit" if limit is None else f"at most {limit} ahead"
        rows.append(("running ahead", way, count, returned, done, most * _HELD * 4))
    return rows


def _work(held: list[torch.Tensor]) -> None:
    """Computes on what it holds, and then lets go of it."""
    X = held.pop()
    for _ in range(3):
        X.sin_()


def _slope(times: dict[int, Spread]) -> float:
    """Seconds per operation, by least squares over the lowest times, which other programs have disturbed least."""
    slope, _ = np.polyfit(list(times), [spread.lowest for spread in times.values()], 1)
    return float(slope)


def _shows(rows: Sequence[Row], slope: float, steep: float) -> str:
    """What the figures say."""
    timed = [row for row in rows if row[0] == "finishing" and row[1] != "NumPy"]
    ahead = [row for row in rows if row[0] == "running ahead"]
    share = {str(row[1]): _number(row[3]) / _number(row[4]) for row in timed}
    late = "is wrong" if min(share.values()) < 0.5 else "happens to be about right here"
    returns = " and after ".join(f"{100 * part:.0f} % of what {name} takes" for name, part in share.items())
    first, last = _number(ahead[0][5]), _number(ahead[-1][5])
    saved = f"running at most 1 ahead holds {format_bytes(last)} instead of {format_bytes(first)}"
    costs = (
        f"an operation costs {format_seconds(slope)} when waited for at the end and {format_seconds(steep)} when "
        "waited for each time"
        if steep > slope
        else "what waiting after each operation costs cannot be told apart here from what other programs took"
    )
    return f"Calls return after {returns}, so a clock that is read without waiting {late}; {costs}; {saved}."


def _number(cell: Cell) -> float:
    assert isinstance(cell, int | float)
    return float(cell)


def _draw(together: dict[int, Spread], each: dict[int, Spread], rows: Sequence[Row], figure: Figure) -> None:
    """n operations, waited for at the end and each; and when calls return and finish."""
    by_count, finishing = figure.subplots(1, 2)
    for name, times in (("wait after each: n·(t1 + t2 + t3)", each), ("wait at the end: t1 + n·t2 + t3", together)):
        by_count.plot(list(times), [1e3 * spread.lowest for spread in times.values()], marker="o", label=name)
    by_count.set(title="n operations, lowest times", xlabel="n", ylabel="ms", ylim=(0, None))
    by_count.grid(alpha=0.3)
    by_count.legend()
    parts: list[Any] = [row for row in rows if row[0] == "finishing"]
    names = [row[1] for row in parts]
    finishing.barh(names, [1e3 * row[4] for row in parts], label="done")
    finishing.barh(names, [1e3 * row[3] for row in parts], label="calls have returned", height=0.4)
    finishing.set(title="Right and wrong timing", xlabel="ms", ylim=(-0.6, len(parts) + 0.2))  # room for the legend
    finishing.legend(loc="upper right")
