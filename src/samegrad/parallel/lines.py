"""How the exchanges of a backward run: one after the other, in the order in which they were started.

Where ranks share memory, an exchange is additions that the rank's own core has to do; a second thread would only take
that core, and Python's lock, from backward. So starting one says that the slots are filled, and the additions are done
at the end, when nobody needs to wait for anybody. Everywhere else an exchange is messages and waiting, which a thread
(and a stream, on CUDA) of its own does while backward goes on. The last one cannot be hidden, so its first messages do
not wait until the thread has been woken.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from samegrad.executors import Exchange, Group, SoloGroup
from samegrad.executors.base import Work
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.timeline import span

__all__ = ["CallersLine", "Line", "ThreadLine", "line_for"]


Take = Callable[[list[Tensor]], None]


class Line(Protocol):
    """Runs exchanges. All ranks start the same ones in the same order, then finish.

    is_apart: whether the caller may exchange something else over the same group before `finish`, and gains by it.
    """

    is_apart: bool

    def start(self, exchange: Exchange, take: Take, name: str, is_last: bool = False) -> None:
        """Says that the slots of `exchange` are filled; `take` gets its result, before `finish` returns. name: for a
        timeline. is_last: whether `finish` comes next."""
        ...

    def finish(self) -> None:
        """Returns when all that were started have ended; raises what went wrong in one of them."""
        ...

    def close(self) -> None:
        """Nothing more will be started."""
        ...


def line_for(group: Group, device: torch.device) -> Line:
    """The way that is best for the exchanges of `group`, of buffers on `device`."""
    return CallersLine() if isinstance(group, SharedMemoryGroup | SoloGroup) else ThreadLine(device)


class CallersLine:
    """See `Line`; the caller does what is left to do, in `finish`."""

    is_apart = False

    def __init__(self) -> None:
        self._works: list[tuple[Work, Take, str]] = []

    def start(self, exchange: Exchange, take: Take, name: str, is_last: bool = False) -> None:
        """See `Line.start`."""
        self._works.append((exchange.start(), take, name))

    def finish(self) -> None:
        """See `Line.finish`."""
        works, self._works = self._works, []
        for work, take, name in works:
            with span(name, "exchange"):
                take(work.wait())

    def close(self) -> None:
        """See `Line.close`."""
        self._works = []


class ThreadLine:
    """See `Line`; a thread runs the exchanges, on CUDA in a stream of its own. It ends with `close` or the object.

    After a failure no more exchanges are run: the other ranks would not take part in them as meant.
    """

    def __init__(self, device: torch.device) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._device = device
        self.is_apart = device.type != "cuda"  # NCCL needs all that goes over a group in one order
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._failure: BaseException | None = None
        self._given = self._done = 0  # exchanges; each is counted by one thread
        threading.Thread(target=_work_through, args=(self._tasks,), name="samegrad exchanges", daemon=True).start()
        weakref.finalize(self, self._tasks.put, None)

    def start(self, exchange: Exchange, take: Take, name: str, is_last: bool = False) -> None:
        """See `Line.start`."""
        filled = None if self._stream is None else torch.cuda.current_stream(self._device).record_event()
        begun: Work | None = None
        if is_last and self._stream is None and self._failure is None and self._given == self._done:
            try:
                begun = exchange.start()
            except Exception as failure:  # what else there is, Ctrl-C, is for the caller
                self._failure = failure
        self._given += 1

        def run() -> None:
            if self._failure is None:
                try:
                    with span(name, "exchange"), self._on_stream(filled):
                        take((begun or exchange.start()).wait())
                except BaseException as failure:
                    self._failure = failure
            self._done += 1

        self._tasks.put(run)

    def finish(self) -> None:
        """See `Line.finish`."""
        done = threading.Event()
        self._tasks.put(done.set)
        with span("exchanges", "waiting"):
            done.wait()  # every exchange has a deadline
        if self._failure is not None:
            raise self._failure
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def close(self) -> None:
        """See `Line.close`."""
        self._tasks.put(None)

    @contextlib.contextmanager
    def _on_stream(self, filled: torch.cuda.Event | None) -> Iterator[None]:
        if self._stream is None or filled is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(filled)
            yield


def _work_through(tasks: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    with torch.no_grad():
        while (task := tasks.get()) is not None:
            task()
