"""What a worker knows of the group it was started in."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from samegrad.errors import ConfigurationError

__all__ = ["WorkerContext", "context", "encoded", "enter", "report", "stop_wanted"]


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """This process is worker `rank` of `len(devices)`; it computes on `devices[rank]`.

    memory_fd: a memory file that all workers inherited, to find each other in.
    timeout_s: how long a worker waits for the others in one exchange; None to go by what steps take. start_timeout_s:
        the same for the first one.
    on_exit: called in order when the launched function has returned.
    returned: one byte per rank in memory that all workers share; not 0 when the launched function has returned there.
        Three more stand behind them, for when the launcher has asked the workers to stop when they can, for when their
        supervisor ends them, and for when a SIGTERM of others is left to the launcher from now on.
    leaves_sigterm: whether a SIGTERM that the supervisor has not sent is left to the launcher.
    send_saving: tells the launcher of the folder that a training saves to when it is stopped; of "" when it has ended.
    """

    rank: int
    devices: tuple[str, ...]
    memory_fd: int
    threads: int
    timeout_s: float | None
    send_report: Callable[[dict[str, Any]], None]
    on_exit: list[Callable[[], None]] = field(default_factory=list)
    returned: mmap.mmap | bytearray = field(default_factory=bytearray)
    start_timeout_s: float = 300.0
    leaves_sigterm: bool = False
    send_saving: Callable[[str], None] = lambda _: None

    @property
    def own_devices(self) -> bool:
        """Whether no two ranks have the same device."""
        return len(set(self.devices)) == len(self.devices)

    def has_left(self, rank: int) -> bool:
        """Whether the launched function has returned on `rank`, so that nothing more will come from there."""
        return self._is_set(rank)

    def is_to_stop(self) -> bool:
        """Whether the launcher has asked the workers to stop when they can."""
        return self._is_set(len(self.devices))

    def is_to_end(self) -> bool:
        """Whether a SIGTERM that comes now ends this worker."""
        leaves_sigterm = self.leaves_sigterm or self._is_set(len(self.devices) + 2)
        return not leaves_sigterm or self._is_set(len(self.devices) + 1)

    def _is_set(self, place: int) -> bool:
        return place < len(self.returned) and self.returned[place] != 0


_context: WorkerContext | None = None


def context() -> WorkerContext | None:
    """The context of this worker; None in a process that samegrad did not start and that has joined no job."""
    return _context


def enter(worker: WorkerContext) -> None:
    """Makes `worker` the context of this process; called once, by the process that was just forked or that joins."""
    global _context
    _context = worker


def report(record: dict[str, Any]) -> None:
    """Hands `record` to the `on_report` of the launch that started this worker; does nothing outside of one.

    A record holds names and plain JSON values: numbers, text, None, lists and dicts of them. Raises ConfigurationError
    for anything else, and in a process that the worker has started.
    """
    if _context is not None:
        _context.send_report(record)


def encoded(record: dict[str, Any]) -> str:
    """The JSON of a record for `report`; raises ConfigurationError for what JSON cannot say."""
    if not isinstance(record, dict):
        raise ConfigurationError(f"report: a record is a dict of names and values; got {type(record).__name__}")
    try:
        return json.dumps(record)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"report: a record holds numbers, text, None, lists and dicts of them; {error}. Of a tensor or array, "
            f"report .item() or .tolist()"
        ) from None


def stop_wanted() -> bool:
    """Whether who started this worker has asked it to stop when it can, see `StopSwitch`; False outside of a launch."""
    return _context is not None and _context.is_to_stop()
