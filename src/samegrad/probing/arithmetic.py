"""Arithmetic rates: matrix products by number format and size, layers of our models, and additions of gradients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from samegrad.machine import usable_cores
from samegrad.models import lenet, mlp, resnet18
from samegrad.probing.effort import Effort
from samegrad.probing.task import Task, per_call
from samegrad.timing import Spread

__all__ = ["ADDITIONS", "arithmetic", "product_rate"]

ADDITIONS = "add gradients, 1 thread"
"""The row that says at how many bytes/s of result an all-reduce adds."""

_FORMATS = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
_SLOW = ("fp16",)  # emulated by CPUs without instructions for it: the smallest size is enough
_BATCH = 32
_GRADIENTS = 11_000_000  # elements: about those of a ResNet-18


@contextlib.contextmanager
def arithmetic(effort: Effort) -> Iterator[list[Task]]:
    """What is measured of the CPU's arithmetic; the number of threads that torch uses is put back in the end."""
    threads = torch.get_num_threads()
    cores = usable_cores()
    tasks: list[Task] = []
    try:
        for size in effort.matrices:
            for name, dtype in _FORMATS.items():
                if name not in _SLOW or size == effort.matrices[0]:
                    one = functools.partial(_threads, 1)
                    tasks.append(product_rate(effort, size, f"{name}, 1 thread", dtype, "cpu", one))
        if cores > 1:
            every = functools.partial(_threads, cores)
            largest = effort.matrices[-1]
            tasks.append(product_rate(effort, largest, f"fp32, {cores} threads", torch.float32, "cpu", every))
        tasks += _layers(effort)
        tasks.append(Task(ADDITIONS, "B/s", functools.partial(_additions, effort, 1), note="fp32, 44 MB, in place"))
        if cores > 1:
            name = f"add gradients, {cores} threads"
            tasks.append(Task(name, "B/s", functools.partial(_additions, effort, cores), note="fp32, 44 MB, in place"))
        with torch.no_grad():
            yield tasks
    finally:
        torch.set_num_threads(threads)


def product_rate(
    effort: Effort, size: int, name: str, dtype: torch.dtype, device: str, prepare: Callable[[], None]
) -> Task:
    """The task of multiplying two square matrices of `size` rows on `device`, after `prepare`."""

    def rate() -> Spread:
        prepare()
        generator = torch.Generator().manual_seed(0)
        a, b = (torch.randn(size, size, generator=generator).to(device, dtype) for _ in range(2))
        out = torch.empty_like(a)
        call = functools.partial(torch.mm, a, b, out=out)
        return per_call(effort, call, device).map(lambda seconds: 2 * size**3 / seconds)

    return Task(f"product of {size} × {size}, {name}", "FLOP/s", rate)


def _threads(count: int) -> None:
    torch.set_num_threads(count)


def _layers(effort: Effort) -> list[Task]:
    """Forward of layers of our models, 1 thread."""
    models: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
        "LeNet, second convolution": (lenet, (1, 28, 28), "conv2"),
        "ResNet-18, a convolution of stage 1": (resnet18, (1, 28, 28), "stage1.0.conv1"),
        "ResNet-18, a convolution of stage 4": (resnet18, (1, 28, 28), "stage4.1.conv1"),
        "MLP 784-512-256-10, first layer": (functools.partial(mlp, (784, 512, 256, 10)), (784,), "linear1"),
    }

    def rate(make: Callable[[], nn.Module], shape: tuple[int, ...], path: str) -> Spread:
        _threads(1)
        with torch.random.fork_rng(devices=[]):
            model = make().eval()
            X = torch.randn(_BATCH, *shape)
        layer = model.get_submodule(path)
        taken: list[Tensor] = []
        hook = layer.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
        model(X)
        hook.remove()
        work = _operations(layer, layer(taken[0]))
        return per_call(effort, functools.partial(layer, taken[0])).map(lambda seconds: work / seconds)

    return [
        Task(f"{name}, batch {_BATCH}", "FLOP/s", functools.partial(rate, *how), note="forward, fp32, 1 thread")
        for name, how in models.items()
    ]


def _operations(layer: nn.Module, output: Tensor) -> float:
    """Multiplications and additions in a forward of a convolution or a linear layer."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return 2.0 * output.numel() * weight[0].numel()


def _additions(effort: Effort, threads: int) -> Spread:
    """Bytes of sum per second."""
    _threads(threads)
    total, part = torch.zeros(_GRADIENTS), torch.ones(_GRADIENTS)
    return per_call(effort, functools.partial(total.add_, part)).map(lambda seconds: 4 * _GRADIENTS / seconds)
