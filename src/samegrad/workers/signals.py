"""Ctrl-C and SIGTERM while something trains that saves: the first has it saved and ended, the second ends it at once.

Only where they would act as Python and the system have them act: handlers of the caller are left alone, as they are
outside of the main thread, which alone may set any.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from samegrad.workers.context import context
from samegrad.workers.membership import JoinedContext

__all__ = ["SavingSignals", "saved_on_signal"]

_DEFAULTS: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
_log = logging.getLogger("samegrad")


@contextlib.contextmanager
def saved_on_signal(folder: str, stop: Callable[[], None]) -> Iterator[None]:
    """Within, a training saves itself to `folder` when it is stopped, by `stop` or because `stop_wanted()` is true.

    In a worker of `launch` the launcher is told so, and has the signals; elsewhere see `SavingSignals`.
    """
    worker = context()
    if worker is None or isinstance(worker, JoinedContext):
        with SavingSignals(stop, says=worker is None or worker.rank == 0) as signals:
            signals.folder = folder
            yield
    elif worker.rank == 0:
        worker.send_saving(folder)
        try:
            yield
        finally:
            worker.send_saving("")
    else:
        yield


class SavingSignals:
    """Within, the first signal calls `stop` if there is a `folder` to save to; else it acts as it would without this.

    When it has, the end of the block logs how to go on, and the signal acts then: KeyboardInterrupt, or for SIGTERM the
    end of the process; not if the block ends by an exception. The second signal acts at once.

    says: whether this process is the one that logs.
    """

    def __init__(self, stop: Callable[[], None], says: bool = True) -> None:
        self.folder = ""
        self._stop, self._says = stop, says
        self._pid = os.getpid()
        self._came: tuple[signal.Signals, str] | None = None  # the first, and the folder then
        self._taken: list[signal.Signals] = []

    def __enter__(self) -> SavingSignals:
        if threading.current_thread() is threading.main_thread():
            for number, default in _DEFAULTS.items():
                if signal.getsignal(number) is default:
                    signal.signal(number, self._take)
                    self._taken.append(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()
        if self._came is None or error is not None:
            return
        number, folder = self._came
        self._log(f"{number.name}: saved to {folder}. To go on, with the same result: trainer.resume({folder!r})")
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # closed, or nobody reads it
                stream.flush()
        signal.raise_signal(number)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid and self.folder and self._came is None:
            self._came = signal.Signals(number), self.folder
            self._log(
                f"{self._came[0].name}: stopping after the next step, and saving; once more to end at once, without"
            )
            self._stop()
            return
        self._give_back()
        signal.raise_signal(number)

    def _give_back(self) -> None:
        for number in self._taken:
            if signal.getsignal(number) == self._take:
                signal.signal(number, _DEFAULTS[number])
        self._taken = []

    def _log(self, text: str) -> None:
        if self._says:
            with contextlib.suppress(RuntimeError):  # a write to the same stream was interrupted
                _log.warning(text)
