"""Work for one device, done in order by a thread of its own, while the caller goes on.

Plain torch computes on a CPU within the call. With a queue the caller gives the work and has it done, as on a GPU:

    with DeviceQueue("cpu") as one, DeviceQueue("cpu") as two:
        a = one.put(lambda: X @ X)      # both at the same time
        b = two.put(lambda: Y @ Y)
        a.result() + b.result()

torch lets go of Python's lock while it computes, so several queues do compute at the same time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from samegrad.errors import ConfigurationError, TrainingError

__all__ = ["DeviceQueue"]

_T = TypeVar("_T")


class DeviceQueue:
    """device: "cpu", "cuda", ...; a GPU's work goes to a stream of its own, and is done when the GPU has done it.

    limit: how many works may be waiting or running before `put` waits, so that what they hold stays bounded; None: any
    number.
    timeout_s: how long `put`, `synchronize` and `close` wait for the device.
    """

    def __init__(self, device: str | torch.device = "cpu", limit: int | None = None, timeout_s: float = 300.0) -> None:
        if limit is not None and limit < 1:
            raise ConfigurationError(f"DeviceQueue: limit must be at least 1, or None; got {limit}")
        self.device = torch.device(device)
        self._limit, self._timeout_s = limit, timeout_s
        self._works: deque[tuple[Future[Any], Callable[[], Any], bool]] = deque()
        self._unfinished = 0
        self._error: BaseException | None = None
        self._is_open = True
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"queue of {self.device}", daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], _T]) -> Future[_T]:
        """Queues `work` and returns at once, unless `limit` works are unfinished; the future has what it returns.

        It runs with gradients enabled or not as they are here. Raises TrainingError if there is no room in time, and if
        the queue is closed.
        """
        future: Future[_T] = Future()
        with self._changed:
            if self._limit is not None:
                limit = self._limit
                self._wait(lambda: self._unfinished < limit or not self._is_open, "make room for more work")
            if not self._is_open:
                raise TrainingError(f"the queue of {self.device} is closed; put work into it before that")
            self._works.append((future, work, torch.is_grad_enabled()))
            self._unfinished += 1
            self._changed.notify_all()
        return future

    def synchronize(self) -> None:
        """Returns when all work that was put has been done. Raises what the first of it raised, once."""
        with self._changed:
            self._wait(lambda: not self._unfinished, "finish its work")
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Ends the thread, after the work that runs; what still waits is cancelled."""
        with self._changed:
            self._is_open = False
            while self._works:
                self._works.popleft()[0].cancel()
                self._unfinished -= 1
            self._changed.notify_all()
        self._thread.join(self._timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.synchronize()
        finally:
            self.close()

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        if not self._changed.wait_for(is_so, self._timeout_s):
            raise TrainingError(
                f"{self.device} did not {what} within {self._timeout_s:g} s: {self._unfinished} works are unfinished. "
                "Is one of them waiting for something that never comes?"
            )

    def _run(self) -> None:
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._works or not self._is_open)
                if not self._works:
                    return
                future, work, with_gradients = self._works.popleft()
            future.set_running_or_notify_cancel()
            try:
                with torch.set_grad_enabled(with_gradients), torch.cuda.stream(stream):
                    result = work()
                    if stream is not None:
                        stream.synchronize()
            except BaseException as error:
                self._error = self._error or error
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
            del future, work
            with self._changed:
                self._unfinished -= 1
                self._changed.notify_all()
