"""Ranks with lifelines in one process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from samegrad.workers.lifeline import Lifeline

__all__ = ["lifelines"]


@contextmanager
def lifelines(size: int) -> Iterator[list[Lifeline]]:
    """Of `size` ranks, rank r on the host "host-r", not started."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for low in range(size):
        for high in range(low + 1, size):
            ends[low][high], ends[high][low] = socket.socketpair()
    made = [Lifeline(rank, ends[rank], [f"host-{number}" for number in range(size)]) for rank in range(size)]
    try:
        yield made
    finally:
        for each in made:
            each.close("has ended")
