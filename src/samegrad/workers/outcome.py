"""What the workers have said so far, and what follows from it: a value or the first failure. No I/O."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable
from typing import Any

from samegrad.errors import ConfigurationError, GroupError, SamegradError, WorkerDied, WorkerFailed
from samegrad.workers import pickling
from samegrad.workers.frames import Frame, Kind

__all__ = ["OnReport", "Outcome"]

OnReport = Callable[[dict[str, Any]], None]


class Outcome:
    """Takes the messages from the server in order; hands reports to `on_report`. `started`: the workers run.

    on_saving: called with the folder that a training saves to when it is stopped, and with "" when it has ended.
    """

    def __init__(self, on_report: OnReport | None, on_saving: Callable[[str], None] = lambda _: None) -> None:
        self._on_report, self._on_saving = on_report, on_saving
        self._devices: list[str] = []
        self._returned: set[int] = set()
        self._result = b""

    @property
    def started(self) -> bool:
        """Whether the workers have been started."""
        return bool(self._devices)

    def take(self, frame: Frame) -> None:
        """Notes what a message says; raises the failure if it tells of one."""
        match frame.kind:
            case Kind.STARTED:
                self._devices = frame.json()["devices"]
            case Kind.REPORT:
                if self._on_report is not None:
                    self._on_report(frame.json())
            case Kind.SAVING:
                self._on_saving(frame.payload.decode())
            case Kind.RESULT:
                self._returned.add(frame.rank)
                if frame.rank == 0:
                    self._result = frame.payload
            case Kind.FAILURE:
                raise self._failure(frame)
            case Kind.DIED:
                raise self._death(frame)
            case Kind.REFUSED:
                raise pickle.loads(frame.payload)

    def value(self, exit_code: int) -> Any:
        """What rank 0 returned, when the server has ended with `exit_code`."""
        if not self.started or len(self._returned) < len(self._devices):
            raise GroupError(
                f"launch: the process that starts the workers {_how(exit_code)} before all of them had answered; what "
                f"it printed says why. The workers were stopped"
            )
        try:
            return pickling.loads(self._result)
        except Exception as error:
            raise ConfigurationError(
                f"launch: what the function returned on rank 0 cannot be read here: {type(error).__name__}: {error}. "
                f"Return numbers, text, tensors, or lists and dicts of them"
            ) from error

    def _failure(self, frame: Frame) -> BaseException:
        pickled, text, trace = pickle.loads(frame.payload)
        original = _exception(pickled)
        where = self._where(frame.rank)
        if isinstance(original, SamegradError):
            original.add_note(f"in {where}:\n{trace}")
            return original
        failure = WorkerFailed(
            f"{where} raised {text}\nThe other ranks were stopped. Its traceback:\n{trace}", frame.rank, trace
        )
        failure.__cause__ = original
        return failure

    def _death(self, frame: Frame) -> WorkerDied:
        died = frame.json()
        where = self._where(frame.rank, f"process {died['pid']}, ")
        message = f"{where} {_how(died['exit_code'])}; the other ranks were stopped"
        return WorkerDied(message, frame.rank, died["exit_code"])

    def _where(self, rank: int, process: str = "") -> str:
        return f"rank {rank} of {len(self._devices)} ({process}{self._devices[rank]})"


def _exception(pickled: bytes | None) -> BaseException | None:
    """The exception itself, if it can be had here."""
    try:
        loaded = None if pickled is None else pickling.loads(pickled)
    except Exception:
        return None
    return loaded if isinstance(loaded, BaseException) else None


def _how(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended by itself with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    advice = {
        "SIGKILL": " (if nobody sent it, the system ran out of memory)",
        "SIGBUS": " (mostly: no memory left for what the ranks share)",
        "SIGSEGV": " (a fault in native code)",
        "SIGABRT": " (native code gave up; what it printed may say why)",
    }
    return f"was killed by {name}{advice.get(name, '')}"
