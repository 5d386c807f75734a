"""Seeding every generator that a model or a data set may draw from."""

from __future__ import annotations

import random
import sys

import torch

__all__ = ["seed_generators"]


def seed_generators(key: int, device: torch.device) -> None:
    """Seeds Python's, NumPy's (if it is in use) and torch's global generators, on the CPU and on `device`."""
    random.seed(key)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(key)
