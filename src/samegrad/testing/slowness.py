"""Devices that are slower than others, where all are alike."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import nn

__all__ = ["slowed"]


def slowed(module: nn.Module, seconds: float | Callable[[], float]) -> nn.Module:
    """`module`, each forward of which takes so many seconds longer, asleep; what it computes keeps its bits.

    seconds: a function of no arguments where it is another time for each forward.
    """

    def sleep(*_: object) -> None:
        time.sleep(seconds() if callable(seconds) else seconds)

    module.register_forward_pre_hook(sleep)
    return module
