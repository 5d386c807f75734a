"""`trace`: what all ranks do when, in a file that Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing) show."""

from __future__ import annotations

import json
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import torch

from samegrad.errors import OutputError
from samegrad.output import write_output
from samegrad.parallel.world import World, current_world
from samegrad.timeline import (
    Timeline,
    TimelineSummary,
    is_recording,
    open_span,
    recording,
    span,
    summary_of,
    trace_events,
)

__all__ = ["Trace", "computing", "open_computing", "trace"]

_MEETINGS = 9  # odd, for a median; each takes as long as a message


_NOTHING = nullcontext()


class Trace:
    """What `trace` found, once it has ended: `summary` is that of all ranks, the same on each of them."""

    def __init__(self) -> None:
        self.summary: TimelineSummary | None = None


@contextmanager
def trace(path: str | Path) -> Iterator[Trace]:
    """Records what this rank does within, and writes the timelines of all ranks to the file `path`, from rank 0.

    All ranks enter and leave it together: what they recorded is gathered at the end. If it ends with an exception, the
    file has what rank 0 recorded. The clocks of ranks of several hosts are compared by meeting a few times; they are
    then right within the time that a message takes.

    On CUDA devices, computing is timed to its end, which keeps the device from running ahead of the program: a step
    takes longer than one that is not recorded. Ranges for NVIDIA's profilers (NVTX) have the same names.

    Raises OutputError on rank 0 if the file cannot be written, ConfigurationError within another `trace`.
    """
    world, own, found = current_world(), Timeline(), Trace()
    try:
        with recording(own):
            yield found
    except BaseException:
        if world.rank == 0 and own.spans:
            with suppress(OutputError):  # the exception says more
                _write(Path(path), [own], world)
        raise
    timelines = _gathered(world, own)
    found.summary = summary_of(timelines)
    if world.rank == 0:
        _write(Path(path), timelines, world)


def computing(name: str, device: torch.device, **arguments: int | float | str) -> AbstractContextManager[object]:
    """A span of computing on `device`; on CUDA it lasts until the device has done it, if a timeline is recorded."""
    if not is_recording():
        return _NOTHING
    return span(name, "compute", **arguments) if device.type != "cuda" else _on_cuda(name, device, arguments)


@contextmanager
def _on_cuda(name: str, device: torch.device, arguments: Mapping[str, int | float | str]) -> Iterator[None]:
    with span(name, "compute", **arguments), torch.cuda.nvtx.range(name):
        yield
        torch.cuda.synchronize(device)


def open_computing(name: str, device: torch.device) -> Callable[[], None]:
    """The same, which ends when what is returned is called."""
    close = open_span(name, "compute")
    if device.type != "cuda" or not is_recording():
        return close
    torch.cuda.nvtx.range_push(name)

    def close_on_cuda() -> None:
        torch.cuda.nvtx.range_pop()
        torch.cuda.synchronize(device)
        close()

    return close_on_cuda


def _write(path: Path, timelines: Sequence[Timeline], world: World) -> None:
    names = [f"rank {rank} ({world.devices[rank]})" for rank in range(len(timelines))]
    write_output(path, json.dumps(trace_events(timelines, names)).encode())


def _gathered(world: World, own: Timeline) -> list[Timeline]:
    """The timelines of all ranks, on the clock of rank 0."""
    if world.size == 1:
        return [own]
    later = [0] * world.size if world.host is not None else _clocks(world)
    records = world.group.gather(own.to_bytes(), "timelines of all ranks")
    return [Timeline.from_bytes(record, more) for record, more in zip(records, later, strict=True)]


def _clocks(world: World) -> list[int]:
    """How many nanoseconds the clock of each rank shows more than that of rank 0."""
    met = []
    for _ in range(_MEETINGS):
        world.group.gather(b"", "comparing clocks")
        met.append(time.monotonic_ns())
    shown = [
        struct.unpack(f"<{_MEETINGS}q", each)
        for each in world.group.gather(struct.pack(f"<{_MEETINGS}q", *met), "clocks")
    ]
    return [round(statistics.median(a - b for a, b in zip(own, shown[0], strict=True))) for own in shown]
