"""Seeding every generator that a model or a data set may draw from."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch

__all__ = ["kept_generators", "seed_generators"]


@contextlib.contextmanager
def kept_generators(device: torch.device) -> Iterator[None]:
    """Puts the generators that `seed_generators` seeds back to where they are now, afterwards."""
    numpy = sys.modules.get("numpy")
    python_state, torch_state = random.getstate(), torch.get_rng_state()
    numpy_state = None if numpy is None else numpy.random.get_state()
    cuda_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        if cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state, device)


def seed_generators(key: int, device: torch.device) -> None:
    """Seeds Python's, NumPy's (if it is in use) and torch's global generators, on the CPU and on `device`."""
    random.seed(key)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(key)
