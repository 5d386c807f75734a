"""`launch`: runs a function on every device of this host and returns what rank 0 returned."""

from __future__ import annotations

import json
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO, TypeVar

from samegrad.errors import ConfigurationError, GroupError, SamegradError, WorkerDied, WorkerFailed
from samegrad.workers import pickling
from samegrad.workers.context import context
from samegrad.workers.frames import Frame, FrameReader, Kind, send_frame

__all__ = ["launch"]

T = TypeVar("T")

_STOP_S = 2.0  # the server needs less than this to end all workers
_BOOT = "import sys; sys.path[:] = {path!r}; from samegrad.workers.server import main; main({fd}, {pid})"


def launch(
    function: Callable[[], T],
    *,
    devices: str | int | Sequence[str] = "auto",
    threads: int = 1,
    timeout_s: float = 300.0,
    on_report: Callable[[dict[str, Any]], None] | None = None,
    at_most: int = 8,
    preload: Sequence[str] = ("torch",),
) -> T:
    """Runs `function()` in one new process for each device of this host; returns the value of rank 0.

    The function may be anything that cloudpickle carries: defined in a script (no `__main__` guard is needed), a
    notebook or a module, a lambda, a closure. Inside it, `samegrad.Trainer` finds the other workers by itself.

    devices: "auto" (every CUDA device, or one CPU worker for every `threads` cores, at most `at_most`), a number, or
        names such as "cpu:2" or "cuda:0,cuda:1"; see `parse_devices`.
    threads: CPU threads of each worker; give the recipe the same number.
    timeout_s: how long a worker waits for the others in one exchange before it gives up and names them.
    on_report: called here with each record that a worker hands to `samegrad.workers.report`.
    preload: modules that are imported once, before the workers are forked.

    Raises what a worker raised, if it is an error of samegrad; WorkerFailed for any other exception (with the worker's
    traceback; the exception itself is its `__cause__`); WorkerDied if a worker was killed or left. The first failure
    counts; all workers have ended when this returns or raises, also on Ctrl-C.
    """
    if context() is not None:
        raise ConfigurationError("launch: this is a worker already; launch cannot be nested")
    if not callable(function):
        raise ConfigurationError(f"launch: a function without arguments is needed; got {function!r}")
    if not isinstance(threads, int) or threads < 1 or not timeout_s > 0 or at_most < 1:
        raise ConfigurationError(
            f"launch: threads, timeout_s and at_most must be positive; got {threads!r}, {timeout_s!r}, {at_most!r}"
        )
    settings = {
        "devices": devices if isinstance(devices, str | int) else list(devices),
        "threads": threads,
        "timeout_s": timeout_s,
        "at_most": at_most,
        "preload": list(preload),
    }
    with _Server() as server:
        send_frame(server.channel, Kind.REQUEST, json.dumps(settings).encode())
        send_frame(server.channel, Kind.FUNCTION, pickling.dumps(function))
        value: T = server.wait(on_report)
        return value


class _Server:
    """The process that forks the workers, from its start to its end."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair()
        # Where sys.stdout is not the process's own output (a notebook, a test), what workers print is passed on.
        self._outputs = [sys.stdout, sys.stderr] if not _is_own_output() else []
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats its bits only with this
        sys.stdout.flush()
        self._process = subprocess.Popen(
            [
                sys.executable,
                *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                "-c",
                _BOOT.format(path=sys.path, fd=theirs.fileno(), pid=os.getpid()),
            ],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self._outputs else None,
            stderr=subprocess.PIPE if self._outputs else None,
            env=environment,
        )
        theirs.close()
        self._devices: list[str] = []

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the server, and with it the workers."""
        self.channel.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def wait(self, on_report: Callable[[dict[str, Any]], None] | None) -> Any:
        """Follows the workers to their end; returns rank 0's value or raises the first failure."""
        reader = FrameReader()
        result: list[Any] = []
        selector = selectors.DefaultSelector()
        selector.register(self.channel, selectors.EVENT_READ)
        pipes = [pipe for pipe in (self._process.stdout, self._process.stderr) if pipe is not None]
        for pipe, output in zip(pipes, self._outputs, strict=True):
            selector.register(pipe, selectors.EVENT_READ, output)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not self.channel:
                    if not _pass_on(key.fd, key.data):
                        selector.unregister(key.fileobj)
                    continue
                try:
                    piece = self.channel.recv(1 << 20)
                except ConnectionResetError:
                    piece = b""
                for frame in reader.feed(piece):
                    self._take(frame, result, on_report)
                if not piece:
                    self._drain(pipes)
                    return self._end(result)

    def _take(self, frame: Frame, result: list[Any], on_report: Callable[[dict[str, Any]], None] | None) -> None:
        if frame.kind is Kind.STARTED:
            self._devices = frame.json()["devices"]
        elif frame.kind is Kind.REPORT and on_report is not None:
            on_report(frame.json())
        elif frame.kind is Kind.RESULT and frame.rank == 0:
            result.append(pickle.loads(frame.payload))
        elif frame.kind is Kind.FAILURE:
            raise self._failure(frame)
        elif frame.kind is Kind.DIED:
            died = frame.json()
            raise WorkerDied(
                f"rank {frame.rank} of {len(self._devices)} (process {died['pid']}, {self._devices[frame.rank]}) "
                f"{_how(died['exit_code'])}; the other ranks were stopped",
                rank=frame.rank,
                exit_code=died["exit_code"],
            )
        elif frame.kind is Kind.REFUSED:
            raise pickle.loads(frame.payload)

    def _failure(self, frame: Frame) -> BaseException:
        pickled, text, trace = pickle.loads(frame.payload)
        original = None if pickled is None else pickle.loads(pickled)
        where = f"rank {frame.rank} of {len(self._devices)} ({self._devices[frame.rank]})"
        if isinstance(original, SamegradError):
            original.add_note(f"in {where}:\n{trace}")
            return original
        failure = WorkerFailed(
            f"{where} raised {text}\nThe other ranks were stopped. Its traceback:\n{trace}", frame.rank, trace
        )
        failure.__cause__ = original
        return failure

    def _drain(self, pipes: list[Any]) -> None:
        for pipe, output in zip(pipes, self._outputs, strict=True):
            while _pass_on(pipe.fileno(), output):
                pass

    def _end(self, result: list[Any]) -> Any:
        if result:
            return result[0]
        code = self._process.wait()
        raise GroupError(
            f"the process that starts the workers {_how(code)} before they gave an answer; what it printed says why"
        )


def _how(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended by itself with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    advice = " (if nobody sent it, the system ran out of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{advice}"


def _is_own_output() -> bool:
    try:
        return sys.stdout.fileno() == 1 and sys.stderr.fileno() == 2
    except (OSError, ValueError, AttributeError):
        return False


def _pass_on(fd: int, output: TextIO) -> bool:
    piece = os.read(fd, 1 << 16)
    if piece:
        output.write(piece.decode(errors="replace"))
        output.flush()
    return bool(piece)
