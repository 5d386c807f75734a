"""The conditions that figures were measured under; without them they mean nothing."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from samegrad.bench.result import Cell
from samegrad.machine import usable_cores

__all__ = ["conditions"]


def conditions(*, threads: int, repetitions: int, device: str = "cpu", **others: Cell) -> dict[str, Cell]:
    """Machine, versions, `threads` of each process and `repetitions` of each figure; and `others`, by name.

    device: "cpu" or "cuda"; of a GPU the name is given too. (The command line adds itself.)
    """
    machine = f"{_processor()}, {usable_cores()} cores, {platform.system()} {platform.machine()}"
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.startswith("cuda") else {}
    versions = {"torch": str(torch.__version__), "python": platform.python_version()}
    return {"machine": machine, **gpu, **versions, "threads": threads, "repetitions": repetitions, **others}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown processor")
