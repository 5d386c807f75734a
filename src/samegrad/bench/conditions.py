"""The conditions that figures were measured under; without them they mean nothing."""

from __future__ import annotations

import platform

import torch

from samegrad.bench.result import Cell
from samegrad.machine import processor_name, usable_cores

__all__ = ["conditions"]


def conditions(*, threads: int, repetitions: int, device: str = "cpu", **others: Cell) -> dict[str, Cell]:
    """Machine, versions, `threads` of each process and `repetitions` of each figure; and `others`, by name.

    device: "cpu" or "cuda"; of a GPU the name is given too. (The command line adds itself.)
    """
    machine = f"{processor_name()}, {usable_cores()} cores, {platform.system()} {platform.machine()}"
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.startswith("cuda") else {}
    versions = {"torch": str(torch.__version__), "python": platform.python_version()}
    return {"machine": machine, **gpu, **versions, "threads": threads, "repetitions": repetitions, **others}
