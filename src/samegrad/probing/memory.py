"""Memory: how long a load takes by the size of what is loaded from, and how many bytes per second come along.

Loops are compiled by numba (`kernels`). Working sets are asked for in large pages, so that what is measured are caches
rather than the tables of pages; where the system gives none, steps are less sharp. What one thread does is timed by the
clock of the thread, which stands still while another program has the core.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samegrad.errors import ConfigurationError
from samegrad.machine import available_memory, usable_cores
from samegrad.probing.caches import Level, levels
from samegrad.probing.effort import Effort, repeated
from samegrad.probing.task import Task
from samegrad.probing.working_sets import compiled_loops, fresh_words, thread_counts, together
from samegrad.timing import Spread
from samegrad.units import format_bytes

__all__ = ["LATENCY", "memory"]

LATENCY = "load, each waiting for the one before"
"""The name of the curve of latencies."""

_LINE = 64  # bytes of a cache line
_NEAR, _FAR = 1, 32  # words from the one to the other: in one line of 64 bytes, or well apart
_WORD = 8


@contextlib.contextmanager
def memory(effort: Effort) -> Iterator[list[Task]]:
    """All that is measured of memory. The last level and all bandwidths use about the largest working set."""
    largest = min(effort.largest, 1 << (max(available_memory() // 4, 1 << 20).bit_length() - 1))
    curve: dict[int, Spread] = {}
    sizes = _sizes(largest, effort.growth)
    tasks = [Task(LATENCY, "s", functools.partial(_latency, effort, size, curve), x=size) for size in sizes]
    tasks += _level_tasks(curve)
    tasks += _bandwidths(effort, largest)
    tasks += _ways_of_access(effort, largest)
    tasks += _false_sharing(effort)
    yield tasks


def _sizes(largest: int, growth: float) -> list[int]:
    """Working sets from 4 KiB to `largest`, whole lines."""
    sizes, size = [], 4096.0
    while size <= largest * 1.001:
        sizes.append(round(size / _LINE) * _LINE)
        size *= growth
    return sizes


def _latency(effort: Effort, size: int, curve: dict[int, Spread]) -> Spread:
    """Seconds of one load in a working set of `size` bytes, from line to line in random order, through all of them."""
    loops = compiled_loops()
    lines = size // _LINE
    order = np.random.default_rng(size).permutation(lines) * (_LINE // _WORD)
    following = fresh_words(size)  # each line holds the address of the next
    following[order] = following.ctypes.data + _WORD * np.roll(order, -1)
    place = loops.chase(following.ctypes.data, min(lines, 1 << 20))
    count = 1 << 12

    def loads() -> float:
        nonlocal place
        start = time.thread_time()
        place = loops.chase(place, count)
        return (time.thread_time() - start) / count

    while loads() * count < effort.seconds / 2:
        count *= 2
    curve[size] = repeated(effort, loads)
    return curve[size]


def _level_tasks(curve: dict[int, Spread]) -> list[Task]:
    """Size and latency of the caches, and the latency of memory, as `curve` shows them in the end."""

    @functools.cache
    def found() -> list[Level]:
        compiled_loops()
        return levels(list(curve), [spread.lowest for spread in curve.values()])

    def at(number: int) -> Level:
        caches = [level for level in found() if level.size is not None]
        if number >= len(caches):
            raise ConfigurationError(f"the curve of latencies shows {len(caches)} steps; --full looks more closely")
        return caches[number]

    def size(number: int) -> Spread:
        return Spread.of([at(number).size or 0.0])

    def latency(number: int) -> Spread:
        level = at(number)
        within = [spread for size, spread in curve.items() if size <= (level.size or 0)]
        return min(within, key=lambda spread: abs(spread.lowest - level.seconds))

    def of_memory() -> Spread:
        compiled_loops()
        return curve[max(curve)]

    reported = _reported_caches()
    tasks: list[Task] = []
    for number in range(3):
        said = f"the system says {format_bytes(reported[number])}" if number < len(reported) else ""
        name = f"level {number + 1} cache"
        tasks.append(Task(f"{name}, size", "B", functools.partial(size, number), note=said))
        tasks.append(Task(f"{name}, load", "s", functools.partial(latency, number)))
    return [*tasks, Task("memory, load", "s", of_memory, note="largest working set")]


def _reported_caches() -> list[int]:
    """Bytes of the data caches by level, as Linux says."""
    sizes: dict[int, int] = {}
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        with contextlib.suppress(OSError, ValueError):
            if (folder / "type").read_text().strip() != "Instruction":
                text = (folder / "size").read_text().strip()
                sizes[int((folder / "level").read_text())] = int(text.rstrip("KM")) << (20 if text[-1] == "M" else 10)
    return [sizes[level] for level in sorted(sizes)]


def _bandwidths(effort: Effort, largest: int) -> list[Task]:
    """Sequential and random reading, and writing, by number of threads: each has a part of its own."""

    @functools.cache
    def words() -> NDArray[np.int64]:
        made = fresh_words(largest)
        compiled_loops().write(made, 1)
        return made

    @functools.cache  # for the curve, and for the table
    def rate(kernel: str, threads: int) -> Spread:
        loops, parts = compiled_loops(), np.array_split(words(), threads)
        parts = [part[: 1 << (part.size.bit_length() - 1)] for part in parts] if kernel == "read_pieces" else parts
        works: list[Callable[[], object]]
        if kernel == "read_pieces":
            count = max(1 << 14, min(largest >> 9, 1 << 20))
            works = [functools.partial(loops.read_pieces, part, 1, count, seed) for seed, part in enumerate(parts, 1)]
            nbytes = count * _WORD * threads
        elif kernel == "write":
            works = [functools.partial(loops.write, part, 2) for part in parts]
            nbytes = sum(part.nbytes for part in parts)
        else:
            works = [functools.partial(loops.read, part) for part in parts]
            nbytes = sum(part.nbytes for part in parts)
        return repeated(effort, lambda: nbytes / together(works))

    ways = {"sequential read": "read", "sequential write": "write", "random read of 8 bytes": "read_pieces"}
    tasks: list[Task] = []
    counts = thread_counts()
    for name, kernel in ways.items():
        for threads in counts:
            tasks.append(Task(name, "B/s", functools.partial(rate, kernel, threads), x=threads, axis="threads"))
    for name, kernel in ways.items():
        for threads in dict.fromkeys((1, counts[-1])):
            label = f"{name}, {threads} thread{'s' * (threads > 1)}"
            tasks.append(Task(label, "B/s", functools.partial(rate, kernel, threads)))
    return tasks


def _ways_of_access(effort: Effort, largest: int) -> list[Task]:
    """The same bytes in other ways: for the first time, backward, with gaps, from odd addresses, in pieces."""
    nbytes = largest // 2

    @functools.cache
    def words() -> NDArray[np.int64]:
        made = fresh_words(nbytes)
        compiled_loops().write(made, 1)
        return made

    def first() -> Spread:
        loops = compiled_loops()
        fresh = [fresh_words(nbytes // 4) for _ in range(effort.repetitions + 1)]
        return repeated(effort, lambda: nbytes / 4 / together([functools.partial(loops.write, fresh.pop(), 1)]))

    def again() -> Spread:
        loops, part = compiled_loops(), words()[: nbytes // 4 // _WORD]
        return repeated(effort, lambda: nbytes / 4 / together([functools.partial(loops.write, part, 1)]))

    def read(kernel: str) -> Spread:
        work = functools.partial(getattr(compiled_loops(), kernel), words())
        return repeated(effort, lambda: nbytes / together([work]))

    def strided(stride: int) -> Spread:
        loops = compiled_loops()
        work = functools.partial(loops.read_strided, words(), stride // _WORD)
        return repeated(effort, lambda: together([work]) / (nbytes // stride))

    def offset(by: int) -> Spread:
        loops = compiled_loops()
        cached = np.frombuffer(bytearray(1 << 14), dtype=np.uint8)
        start = (by - cached.ctypes.data) % _LINE
        part = cached[start : start + (1 << 13)].view(np.int64)

        def often() -> None:
            for _ in range(1 << 10):
                loops.read_unaligned(part)

        return repeated(effort, lambda: (part.nbytes << 10) / together([often]))

    def pieces(piece: int) -> Spread:
        loops, count = compiled_loops(), max(1, (nbytes >> 3) // piece)
        work = functools.partial(loops.read_pieces, words(), piece // _WORD, count, 1)
        return repeated(effort, lambda: piece * count / together([work]))

    tasks = [
        Task("write to fresh memory", "B/s", first, note="the system gives and zeroes each page"),
        Task("write to the same memory again", "B/s", again),
        Task("read forward", "B/s", functools.partial(read, "read")),
        Task("read backward", "B/s", functools.partial(read, "read_backward")),
        *(
            Task(f"read every {stride} bytes, each time", "s", functools.partial(strided, stride))
            for stride in (8, 64, 256, 4096)
        ),
        Task("read at multiples of 64 bytes", "B/s", functools.partial(offset, 0), note="8 kB, in the cache"),
        Task("read 1 byte off", "B/s", functools.partial(offset, 1), note="8 kB, in the cache"),
    ]
    sizes = [size for size in (64, 256, 1024, 4096, 16384, 65536, 1 << 20, 1 << 22) if size <= nbytes // 8]
    return [
        *tasks,
        *(Task("memory, pieces at random", "B/s", functools.partial(pieces, size), x=size) for size in sizes),
    ]


def _false_sharing(effort: Effort) -> list[Task]:
    """Two threads that add in memory: in one cache line, and in two."""

    def additions(distance: int) -> Spread:
        loops = compiled_loops()
        if usable_cores() < 2:
            raise ConfigurationError("needs two cores, and this process may use one")
        words = fresh_words(4096)
        count = min(int(effort.seconds * 2e9), 20_000_000)  # long enough for both to be at it at the same time
        works = [
            functools.partial(loops.increment, words, np.full(8, place, dtype=np.int64), count)
            for place in (0, distance)
        ]
        return repeated(effort, lambda: together(works) / count)

    return [
        Task("addition by two threads, lines apart", "s", functools.partial(additions, _FAR)),
        Task("addition by two threads, in one line", "s", functools.partial(additions, _NEAR), note="false sharing"),
    ]
