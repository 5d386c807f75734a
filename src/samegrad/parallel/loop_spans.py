"""The spans of a training loop that is the user's own, as seen by the model that is wrapped.

A step lasts from the first forward pass in it to the end of the backward that is exchanged.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from samegrad.parallel.tracing import open_computing
from samegrad.timeline import is_recording, open_span

__all__ = ["LoopSpans"]

_Close = Callable[[], None]


class LoopSpans:
    """Of a model on `device`. Calls that come too often, or have no counterpart, do no harm."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._step: _Close | None = None
        self._forward: _Close | None = None
        self._backward: _Close | None = None

    def forward_begins(self) -> None:
        """The model is about to compute."""
        if not is_recording():
            self._step = None
            return
        self._step = self._step or open_span("step", "step")
        self._forward = open_computing("forward", self._device)

    def forward_ends(self) -> None:
        """It has."""
        if self._forward is not None:
            self._forward()
        self._forward = None

    def backward_begins(self) -> None:
        """The first gradient is there."""
        if self._backward is None and is_recording():
            self._backward = open_computing("backward", self._device)

    def backward_ends(self) -> None:
        """The last one is; exchanges may go on."""
        if self._backward is not None:
            self._backward()
        self._backward = None

    def step_ends(self) -> None:
        """All ranks have the mean of the gradients."""
        if self._step is not None:
            self._step()
        self._step = None
