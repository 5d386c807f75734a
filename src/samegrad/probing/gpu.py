"""GPUs: launching a kernel, copies to and from and between them, memory bandwidth, and matrix products by format."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace

import torch

from samegrad.errors import DeviceUnavailable
from samegrad.probing.arithmetic import product_rate
from samegrad.probing.effort import Effort
from samegrad.probing.task import Task, per_call
from samegrad.timing import Spread

__all__ = ["gpu"]

_FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
_SIZE = 4096
_COPIED = 1 << 26
_MEMORY = 1 << 28


@contextlib.contextmanager
def gpu(effort: Effort) -> Iterator[list[Task]]:
    """What is measured of every GPU that torch finds. Raises DeviceUnavailable if there is none."""
    if not torch.cuda.is_available():
        raise DeviceUnavailable("there is no GPU that torch finds")
    numbers = range(torch.cuda.device_count())
    tasks = [task for number in numbers for task in _tasks(effort, number)]
    tasks += [_between(effort, a, b) for a in numbers for b in numbers if a != b]
    try:
        yield tasks
    finally:
        torch.cuda.empty_cache()


def _tasks(effort: Effort, number: int) -> list[Task]:
    device, name = f"cuda:{number}", torch.cuda.get_device_name(number)

    def launch() -> Spread:
        one = torch.zeros(1, device=device)
        return per_call(effort, lambda: one.add_(1), device)

    def launch_and_wait() -> Spread:
        one = torch.zeros(1, device=device)

        def both() -> None:
            one.add_(1)
            torch.cuda.synchronize(device)

        return per_call(effort, both, device)

    def copy(nbytes: int, to_gpu: bool, pinned: bool) -> Spread:
        host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned)
        there = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        target, source = (there, host) if to_gpu else (host, there)
        call = functools.partial(target.copy_, source, non_blocking=pinned)
        return per_call(effort, call, device).map(lambda seconds: nbytes / seconds)

    def memory() -> Spread:
        a = torch.zeros(_MEMORY, dtype=torch.uint8, device=device)
        call = functools.partial(torch.empty_like(a).copy_, a)
        return per_call(effort, call, device).map(lambda seconds: 2 * _MEMORY / seconds)

    def exact() -> None:
        torch.cuda.set_device(number)

    rows = [
        Task(f"gpu{number}: launch a kernel", "s", launch, note=f"{name}; queued one after the other"),
        Task(f"gpu{number}: launch a kernel and wait for it", "s", launch_and_wait, note=name),
        *(
            Task(
                f"gpu{number}: copy {way}, {'pinned' if pinned else 'pageable'}",
                "B/s",
                functools.partial(copy, _COPIED, to_gpu, pinned),
                note=f"{name}; 67 MB",
            )
            for to_gpu, way in ((True, "to the GPU"), (False, "from the GPU"))
            for pinned in (False, True)
        ),
        Task(f"gpu{number}: memory", "B/s", memory, note=f"{name}; read and written, a copy of 268 MB"),
    ]
    for format_name, dtype in _FORMATS.items():
        task = product_rate(effort, _SIZE, format_name, dtype, device, exact)
        rows.append(replace(task, name=f"gpu{number}: {task.name}", note=name))
    sizes = (1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 25)
    return rows + [
        Task(
            f"gpu{number}, copies to it, pinned",
            "B/s",
            functools.partial(copy, size, True, True),
            x=size,
            note=name,
        )
        for size in sizes
    ]


def _between(effort: Effort, a: int, b: int) -> Task:
    def rate() -> Spread:
        source = torch.zeros(_COPIED, dtype=torch.uint8, device=f"cuda:{a}")
        target = torch.zeros(_COPIED, dtype=torch.uint8, device=f"cuda:{b}")
        call = functools.partial(target.copy_, source, non_blocking=True)
        return per_call(effort, call, f"cuda:{b}").map(lambda seconds: _COPIED / seconds)

    way = "directly" if torch.cuda.can_device_access_peer(a, b) else "by way of the host"
    return Task(f"gpu{a} to gpu{b}: copy", "B/s", rate, note=f"{way}; 67 MB")
