"""Processes and threads: what starting one costs, and handing work from one to the other."""

from __future__ import annotations

import contextlib
import functools
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from samegrad.errors import ConfigurationError
from samegrad.probing.effort import Effort, repeated
from samegrad.probing.helper import fork_times
from samegrad.probing.task import Task, per_call
from samegrad.timing import Spread

__all__ = ["processes"]

_WAIT_S = 20.0


@contextlib.contextmanager
def processes(effort: Effort) -> Iterator[list[Task]]:
    """What is measured of processes and threads."""
    lock = threading.Lock()

    def locked() -> None:
        with lock:
            pass

    def started(*command: str) -> Spread:
        def seconds() -> float:
            start = time.perf_counter()
            subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=_WAIT_S)
            return time.perf_counter() - start

        return repeated(effort, seconds)

    yield [
        Task("take a free lock and give it back", "s", lambda: per_call(effort, locked), note="from Python"),
        Task("hand-over between two threads", "s", lambda: _hand_over(effort), note="from Python, by queues"),
        Task("start a program", "s", functools.partial(started, "/bin/true"), note="/bin/true, to its end"),
        Task("start Python", "s", functools.partial(started, sys.executable, "-I", "-S", "-c", ""), note="to its end"),
        Task("fork", "s", lambda: Spread.of(fork_times(4 * effort.repetitions)), note="a small process, to its end"),
    ]


def _hand_over(effort: Effort) -> Spread:
    """Seconds from one thread to the other: half of a round trip."""
    there: queue.SimpleQueue[Any] = queue.SimpleQueue()
    back: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def answer() -> None:
        while (item := there.get()) is not None:
            back.put(item)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()

    def round_trip() -> None:
        there.put(1)
        try:
            back.get(timeout=_WAIT_S)
        except queue.Empty:
            raise ConfigurationError(f"the other thread has not answered within {_WAIT_S:g} s") from None

    try:
        return per_call(effort, round_trip).map(lambda seconds: seconds / 2)
    finally:
        there.put(None)
        thread.join(_WAIT_S)
