"""What a process needs before it computes as a rank, whoever has started it."""

from __future__ import annotations

import ctypes
import random
import sys

__all__ = ["keep_freed_memory", "prepare_process"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt, in malloc.h
_KEEP_BYTES = (1 << 31) - 1


def prepare_process(threads: int, device: str) -> None:
    """Makes this process ready to compute on `device` ("cpu", "cuda:0") with `threads` CPU threads."""
    import torch

    keep_freed_memory()
    torch.set_num_threads(threads)
    # Every rank starts with the same generators, in every run: what a script draws before it trains (weights, say)
    # does not depend on the rank, nor on the day.
    random.seed(0)
    torch.manual_seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)


def keep_freed_memory() -> None:
    """Tells glibc's malloc to reuse large blocks instead of giving them back to the kernel after every use.

    A step frees and asks for the same activations and gradients again and again; fresh pages must be zeroed first.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
