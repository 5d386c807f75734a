"""`launch`: runs a function on every device of this host and returns what rank 0 returned."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from samegrad.errors import ConfigurationError, GroupError
from samegrad.workers import pickling
from samegrad.workers.context import context
from samegrad.workers.devices import device_words
from samegrad.workers.frames import Channel, Frame, Kind
from samegrad.workers.joining import run_joined
from samegrad.workers.membership import Listeners, is_member
from samegrad.workers.outcome import OnReport, Outcome
from samegrad.workers.output import Output, destination
from samegrad.workers.settings import Settings
from samegrad.workers.signals import SavingSignals
from samegrad.workers.stopping import StopSwitch

__all__ = ["launch"]

T = TypeVar("T")

_STOP_S = 1.4  # the server needs less than this to end all workers
_LOOK_UP_S = 0.5  # the longest wait: one does not end by a signal that another thread took, whose handler runs after it
_BOOT = (
    "import sys; sys.path[:] = {path!r}; from samegrad.workers.server import main; main({fd}, {pid}, {leaves_sigterm})"
)


def launch(
    function: Callable[[], T],
    *,
    devices: str | int | Sequence[str] = "auto",
    threads: int = 1,
    timeout_s: float | None = None,
    start_timeout_s: float = 300.0,
    on_report: OnReport | None = None,
    at_most: int = 8,
    preload: Sequence[str] = ("torch",),
    stop: StopSwitch | None = None,
) -> T:
    """Runs `function()` in one new process for each device of this host; returns the value of rank 0.

    The function may be anything that cloudpickle carries: defined in a script (no `__main__` guard is needed), a
    notebook or a module, a lambda, a closure. Inside it, `samegrad.Trainer` finds the other workers by itself.

    devices: "auto" (every CUDA device, or one CPU worker for every `threads` cores, at most `at_most`), a number, or
        names such as "cpu:2" or "cuda:0,cuda:1"; see `parse_devices`.
    threads: CPU threads of each worker; give the recipe the same number.
    timeout_s: how long a worker waits for the others in one exchange before it gives up and names them. If None, 300 s,
        or 50 times as long as it has been busy between two exchanges so far, if that is longer (over a process group of
        torch: 300 s). A worker that has died is not waited for.
    start_timeout_s: the same for the start: until all workers run, and until all have come to their first exchange.
    on_report: called here with each record that a worker hands to `samegrad.workers.report`.
    preload: modules that are imported once, before the workers are forked.
    stop: asks the workers to stop when they can, when it is set. With it, a SIGTERM that is sent to all processes, as
        batch systems do, is left to the caller, as Ctrl-C is: its handler may set the switch. Without it, and where the
        caller has set no handlers of its own, the first Ctrl-C or SIGTERM during a `fit` that saves does so; when the
        function has returned, the signal acts: KeyboardInterrupt, or the end of this process.

    A worker has the caller's environment, working directory, `sys.path`, `sys.argv` and interpreter flags, an empty
    stdin, and random generators (random, numpy, torch, the hashes of strings) that start alike on every rank and in
    every run. What it prints appears where the caller prints. It ends as soon as the function has returned: other
    threads are not waited for, `atexit` functions are not called, processes that it has started are ended.

    In a rank of a job that torchrun or another launcher has started, there is nothing to start: the function is called
    in this process, as this rank, and what it returns here is returned; what it raises is raised as it is. `devices`
    may then say what kind they are ("cpu", "cuda"), or how many ranks there are; see `samegrad.workers.join`.

    Raises what a worker raised, if it is an error of samegrad; WorkerFailed for any other exception (with the worker's
    traceback; the exception itself is its `__cause__`); WorkerDied if a worker was killed or left; ConfigurationError
    for arguments that cannot work. The first failure counts; all workers have ended when this returns or raises, also
    on Ctrl-C and when `on_report` raises.
    """
    is_rank = is_member()
    if context() is not None and not is_rank:
        raise ConfigurationError(
            "launch: this is a worker already; launch cannot be nested. Where a module calls it while it is imported, "
            "put the call under `if __name__ == '__main__':`"
        )
    if not callable(function):
        raise ConfigurationError(f"launch: a function without arguments is needed; got {function!r}")
    preloaded = (preload,) if isinstance(preload, str) else tuple(preload)
    arguments = tuple(map(str, getattr(sys, "argv", ())))
    settings = Settings(
        tuple(device_words(devices)), threads, timeout_s, start_timeout_s, at_most, preloaded, arguments
    )
    if is_rank:
        return run_joined(function, settings, Listeners(on_report, stop))
    _check_platform()
    if stop is not None:
        return _launch(Outcome(on_report), function, settings, stop, leaves_sigterm=True)
    with StopSwitch() as switch, SavingSignals(switch.set) as signals:
        outcome = Outcome(on_report, functools.partial(setattr, signals, "folder"))
        return _launch(outcome, function, settings, switch, leaves_sigterm=False)


def _launch(
    outcome: Outcome, function: Callable[[], T], settings: Settings, stop: StopSwitch, leaves_sigterm: bool
) -> T:
    with _Server(stop, leaves_sigterm, settings.start_timeout_s) as server:
        server.start()
        server.channel.send(Kind.REQUEST, settings.to_json())
        server.channel.send(Kind.FUNCTION, _pickled(function))
        server.follow(outcome)
    value: T = outcome.value(server.exit_code)
    return value


def _check_platform() -> None:
    missing = [name for name in ("fork", "memfd_create") if not hasattr(os, name)]
    if sys.platform != "linux" or missing:
        raise ConfigurationError(
            f"launch: starting workers needs Linux; this is {sys.platform}. Call the function itself: without launch, "
            f"samegrad trains on one device, with the same result"
        )
    if not sys.executable or getattr(sys, "frozen", False):  # a frozen program would start itself again
        raise ConfigurationError(
            f"launch: workers are started by the interpreter {sys.executable!r} (sys.executable), which is not a plain "
            f"Python; run the script with python"
        )


def _pickled(function: Callable[[], object]) -> bytes:
    try:
        return pickling.dumps_function(function)
    except Exception as error:
        names = pickling.names_of_unpicklable(function)
        raise ConfigurationError(
            f"launch: the function cannot be sent to the workers: {error}"
            + (f" (it uses {', '.join(names)})" if names else "")
            + ". Make such things (locks, sockets, open files, generators) inside the function instead"
        ) from error


class _Server:
    """The process that forks the workers, from its start to its end."""

    def __init__(self, stop: StopSwitch, leaves_sigterm: bool, start_timeout_s: float) -> None:
        self._start_timeout_s = start_timeout_s
        own, self._theirs = socket.socketpair()
        self.channel = Channel(own)
        self._process: subprocess.Popen[bytes] | None = None
        self._outputs: list[Output] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.channel, selectors.EVENT_READ)
        self._selector.register(stop, selectors.EVENT_READ)
        self._leaves_sigterm = leaves_sigterm
        self._runs_workers = False
        self.exit_code = 0  # how it has ended

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the server, and with it the workers."""
        try:
            self._stop()
        finally:
            if self._process is not None:
                self._process.kill()  # at once, if Ctrl-C has come a second time
                self.exit_code = self._process.wait()
            self._selector.close()
            self._theirs.close()
            self.channel.close()
            for output in self._outputs:
                output.close()

    def start(self) -> None:
        """Starts it; it then waits for what to do."""
        streams = (sys.stdout, sys.stderr)
        places = [destination(stream, number) for number, stream in enumerate(streams, start=1)]
        for stream, place in zip(streams, places, strict=True):
            if place is None:  # ours and theirs go to the same file: what was printed before comes before
                stream.flush()
        try:
            self._process = _start(self._theirs, places, self._leaves_sigterm)
        except OSError as error:
            raise GroupError(f"launch: {sys.executable} could not be started: {error}") from error
        self._theirs.close()
        for pipe, stream in zip((self._process.stdout, self._process.stderr), streams, strict=True):
            if pipe is not None:
                self._outputs.append(Output(pipe, stream))
                self._selector.register(self._outputs[-1], selectors.EVENT_READ)

    def follow(self, outcome: Outcome) -> None:
        """Gives `outcome` what the workers say until all have ended; raises what `outcome` raises."""
        start_by = time.monotonic() + self._start_timeout_s
        try:
            while not self.channel.at_end:
                left_s = None if outcome.started else start_by - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise GroupError(
                        f"launch: no worker could be started within {self._start_timeout_s:g} s; the process that "
                        f"starts them still imports modules. Does the file system that Python is on respond?"
                    )
                for frame in self._listen(left_s):
                    outcome.take(frame)
        finally:
            self._runs_workers = outcome.started

    def _listen(self, wait_s: float | None) -> list[Frame]:
        """Waits a while for something to come; passes on what was printed and returns the messages."""
        frames: list[Frame] = []
        writing = selectors.EVENT_WRITE if self.channel.pending else 0
        self._selector.modify(self.channel, selectors.EVENT_READ | writing)
        for key, _ in self._selector.select(_LOOK_UP_S if wait_s is None else min(wait_s, _LOOK_UP_S)):
            if key.fileobj is self.channel:
                self.channel.flush()
                frames += self.channel.receive() or ()
            elif isinstance(key.fileobj, StopSwitch):
                self._selector.unregister(key.fileobj)
                self.channel.send(Kind.STOP, b"")
            elif isinstance(key.fileobj, Output) and not key.fileobj.pass_on():
                self._selector.unregister(key.fileobj)
        return frames

    def _stop(self) -> None:
        """Lets the server stop the workers; before it has started any there is nothing to wait for."""
        self.channel.finish()
        stop_by = time.monotonic() + _STOP_S
        while self._runs_workers and not self.channel.at_end and (left_s := stop_by - time.monotonic()) > 0:
            self._listen(left_s)
        if self.channel.at_end and self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(stop_by - time.monotonic(), 0.1))


def _start(theirs: socket.socket, places: list[int | None], leaves_sigterm: bool) -> subprocess.Popen[bytes]:
    path = [entry for entry in sys.path if isinstance(entry, str)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    environment.setdefault("PYTHONHASHSEED", "0")  # the order of sets of strings must not depend on the day
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        environment.setdefault(name, "lo")  # they are all on this host, so they need not listen to the network
    environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats its bits only with this
    # Ctrl-C is for the launcher, and so may be SIGTERM. The server inherits that they are blocked, until it has said
    # what it does with them.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        return subprocess.Popen(
            [
                sys.executable,
                *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                "-c",
                _BOOT.format(path=path, fd=theirs.fileno(), pid=os.getpid(), leaves_sigterm=leaves_sigterm),
            ],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=places[0],
            stderr=places[1],
            env=environment,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
