"""Storage: reading and writing a file in a folder, with the system's page cache and past it.

The file has no name, so it is gone with the process, however that ends. The way past the cache is O_DIRECT; what a
virtual machine calls its disk may still be the memory of its host.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from samegrad.errors import OutputError
from samegrad.output import output_error
from samegrad.probing.effort import Effort, repeated
from samegrad.probing.task import Task
from samegrad.timing import Spread
from samegrad.units import format_bytes

__all__ = ["file_system", "storage"]

_BLOCK = 4096
_MB = 1 << 20
_MOST = 1 << 22
_DEADLINE_S = 10.0  # of one repetition
_IN_MEMORY = ("tmpfs", "ramfs")


@contextlib.contextmanager
def storage(effort: Effort, folder: Path) -> Iterator[list[Task]]:
    """What is measured of the file system that `folder` is on. Raises OutputError if no file can be made there."""
    with _file(folder, effort.file_bytes) as file:
        yield _tasks(effort, file, _said_of(folder))


def file_system(folder: Path) -> tuple[str, str]:
    """Type and device of the file system that `folder` is on, as "ext4" and "/dev/sda1"; "" where unknown."""
    place = folder.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if place.is_relative_to(part.mountpoint)]
    if not mounts:
        return "", ""
    mount = max(mounts, key=lambda part: len(part.mountpoint))
    return mount.fstype, mount.device


def _said_of(folder: Path) -> str:
    kind, device = file_system(folder)
    memory = ", which is memory, not a disk" if kind in _IN_MEMORY else ""
    return f"{folder}: {kind or 'unknown file system'} on {device or 'unknown'}{memory}"


@dataclass(frozen=True, slots=True)
class _File:
    """An open file of `nbytes`, by way of the cache and past it; `direct` is None where that is not offered."""

    cached: int
    direct: int | None
    nbytes: int
    buffer: mmap.mmap

    def descriptor(self, is_direct: bool) -> int:
        if not is_direct:
            return self.cached
        if self.direct is None:
            raise OutputError("this file system has no way past the page cache (O_DIRECT)")
        return self.direct


@contextlib.contextmanager
def _file(folder: Path, nbytes: int) -> Iterator[_File]:
    """Raises OutputError for a folder that is not there, has no room, or may not be written to."""
    if not folder.is_dir():
        raise OutputError(
            f"{folder}: expected a folder to measure storage in; there is none. Name another one (--path)"
        )
    free = shutil.disk_usage(folder).free
    if free < 2 * nbytes:
        raise OutputError(
            f"{folder}: {format_bytes(free)} are free, and measuring needs {format_bytes(2 * nbytes)}. Name another "
            "folder (--path), or measure less (--quick)"
        )
    with contextlib.ExitStack() as closing:
        try:
            cached = closing.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0)).fileno()
        except OSError as error:
            raise output_error(folder, error) from error
        direct: int | None = None
        with contextlib.suppress(OSError):
            direct = os.open(f"/proc/self/fd/{cached}", os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
            closing.callback(os.close, direct)
        buffer = mmap.mmap(-1, _MOST)  # starts at a page, as O_DIRECT wants it
        closing.callback(buffer.close)
        buffer.write(random.Random(0).randbytes(_MOST))  # a disk that compresses shall gain nothing
        yield _File(cached, direct, nbytes, buffer)


def _tasks(effort: Effort, file: _File, said: str) -> list[Task]:
    """Writing comes first: it makes the file."""
    count = max(16, int(effort.seconds * 2000))
    whole = file.nbytes // _MB

    def task(name: str, unit: str, run: Callable[[], Spread], note: str = "") -> Task:
        return Task(name, unit, run, note=note or said)

    def sequential(writes: bool, is_direct: bool, size: int = _MB, most: int = whole) -> Spread:
        work = functools.partial(_move, file, is_direct, writes, size, _places(file, size, most))
        return repeated(effort, lambda: size * most / work())

    def one_block(writes: bool, is_direct: bool) -> Spread:
        numbers = random.Random(1)

        def seconds() -> float:
            places = [numbers.randrange(file.nbytes // _BLOCK) * _BLOCK for _ in range(count)]
            return _move(file, is_direct, writes, _BLOCK, places) / len(places)

        return repeated(effort, seconds)

    def flushed() -> Spread:
        numbers = random.Random(2)

        def seconds() -> float:
            place = numbers.randrange(file.nbytes // _BLOCK) * _BLOCK
            start = time.perf_counter()
            os.pwrite(file.cached, memoryview(file.buffer)[:_BLOCK], place)
            os.fdatasync(file.cached)
            return time.perf_counter() - start

        return repeated(effort, seconds)

    def pieces(size: int) -> Spread:
        return sequential(False, True, size, max(1, min(whole * _MB // size, 1 << 9, (1 << 26) // size)))

    tasks = [
        task("write 1 MB after 1 MB, past the cache", "B/s", lambda: sequential(True, True)),
        task("read 1 MB after 1 MB, past the cache", "B/s", lambda: sequential(False, True)),
        task("write 4 KB at random, past the cache", "s", lambda: one_block(True, True)),
        task("read 4 KB at random, past the cache", "s", lambda: one_block(False, True)),
        task("write 1 MB after 1 MB, to the cache", "B/s", lambda: sequential(True, False)),
        task("read 1 MB after 1 MB, from the cache", "B/s", lambda: sequential(False, False)),
        task("write 4 KB at random, to the cache", "s", lambda: one_block(True, False)),
        task("read 4 KB at random, from the cache", "s", lambda: one_block(False, False)),
        task("write 4 KB and wait until it is safe", "s", flushed),
    ]
    return [
        *tasks,
        *(
            Task("storage, reads past the cache", "B/s", functools.partial(pieces, size), x=size, note=said)
            for size in (4096, 16384, 65536, 1 << 18, 1 << 20, 1 << 22)
        ),
    ]


def _places(file: _File, size: int, most: int) -> list[int]:
    return [number * size % (file.nbytes - size + 1) // _BLOCK * _BLOCK for number in range(most)]


def _move(file: _File, is_direct: bool, writes: bool, size: int, places: list[int]) -> float:
    """Seconds for reading or writing `size` bytes at each of `places`. Raises OutputError past the deadline."""
    descriptor = file.descriptor(is_direct)
    with memoryview(file.buffer) as view, view[:size] as part:
        start = time.perf_counter()
        for place in places:
            done = os.pwrite(descriptor, part, place) if writes else os.preadv(descriptor, [part], place)
            if done != size:
                raise OutputError(f"{'wrote' if writes else 'read'} {done} bytes at {place}, expected {size}")
            if time.perf_counter() - start > _DEADLINE_S:
                raise OutputError(f"the disk is too slow: {len(places)} pieces of {format_bytes(size)} take over 10 s")
        return time.perf_counter() - start
