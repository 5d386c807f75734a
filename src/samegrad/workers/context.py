"""What a worker knows of the group it was started in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["WorkerContext", "context", "enter", "report"]


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """This process is worker `rank` of `len(devices)`; it computes on `devices[rank]`.

    memory_fd: a memory file that all workers inherited, to find each other in.
    timeout_s: how long a worker waits for the others in one exchange.
    on_exit: called in order when the launched function has returned.
    """

    rank: int
    devices: tuple[str, ...]
    memory_fd: int
    threads: int
    timeout_s: float
    send_report: Callable[[dict[str, Any]], None]
    on_exit: list[Callable[[], None]] = field(default_factory=list)


_context: WorkerContext | None = None


def context() -> WorkerContext | None:
    """The context of this worker, or None in a process that samegrad did not start."""
    return _context


def enter(worker: WorkerContext) -> None:
    """Makes `worker` the context of this process; called once, by the process that was just forked."""
    global _context
    _context = worker


def report(record: dict[str, Any]) -> None:
    """Hands `record` (plain JSON values) to the `on_report` of the launch that started this worker, if any."""
    if _context is not None:
        _context.send_report(record)
