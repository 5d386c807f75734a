"""How experiments time things: on one CPU thread, several ways in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch

from samegrad.timing import Spread, Timer

__all__ = ["in_turns", "one_thread"]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """torch computes with one CPU thread, in threads that are started within it too, and without gradients."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)


def in_turns(ways: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, Spread]:
    """Seconds of each of `ways`, which run in turns, so that what else the machine does hits all alike.

    Each runs once before, which does not count. Every GPU that was used is waited for.
    """
    timers = {name: Timer() for name in ways}
    for way in ways.values():
        way()
    for _ in range(repetitions):
        for name, way in ways.items():
            with timers[name]:
                way()
    return {name: timer.spread for name, timer in timers.items()}
