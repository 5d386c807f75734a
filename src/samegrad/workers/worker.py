"""The life of a worker, from the moment it was forked.

It ends by `os._exit` when the launched function has returned or raised, after writing out what was printed: what the
function left behind (other threads, `atexit` functions, destructors of globals) is neither waited for nor called.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from typing import Any, NoReturn

from samegrad.errors import ConfigurationError
from samegrad.workers import pickling
from samegrad.workers.context import WorkerContext, encoded, enter
from samegrad.workers.frames import Kind, send_frame
from samegrad.workers.preparing import prepare_process

__all__ = ["Answers", "run_worker"]

_TIDY_S = 0.3  # for the temporary files of multiprocessing


class _Stopped(SystemExit):
    """Raised in a worker that is asked to stop, so that its `finally` blocks run."""


class Answers:
    """What a worker says to its launcher, over `end`."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()
        self._pid = os.getpid()
        self.is_cut = False  # a stop may have come in the middle of a message

    def report(self, record: dict[str, Any]) -> None:
        """See `context.report`."""
        if os.getpid() != self._pid:
            raise ConfigurationError("report: this process was started by a worker; only the worker itself can report")
        self._send(Kind.REPORT, encoded(record).encode())

    def saving(self, folder: str) -> None:
        """See `WorkerContext.send_saving`."""
        self._send(Kind.SAVING, folder.encode())

    def result(self, value: object, rank: int) -> None:
        """Says that the function has returned; the value matters on rank 0 only."""
        try:
            pickled = pickling.dumps(value) if rank == 0 else b""
        except Exception as error:
            raise ConfigurationError(
                f"launch: what the function returned on rank 0 ({type(value).__name__}) cannot be sent to the caller: "
                f"{error}. Return numbers, text, tensors, or lists and dicts of them (of a model, its state_dict())"
            ) from error
        self._send(Kind.RESULT, pickled)

    def failure(self, error: BaseException) -> None:
        """Says that the function has raised `error`."""
        self._send(Kind.FAILURE, _describe(error))

    def _send(self, kind: Kind, payload: bytes) -> None:
        with self._sending:
            if not self.is_cut:
                send_frame(self._end, kind, payload)


def run_worker(answers: Answers, worker: WorkerContext, function: bytes) -> NoReturn:
    """Runs the pickled `function` as `worker`, sends its answer, and ends the process."""
    pid, exit_code, stopped = os.getpid(), 1, False
    try:
        _end_on_sigterm(answers, worker)
        try:
            _prepare(worker)
            value = _load(function, worker.rank)()
            if os.getpid() == pid:
                for leave in worker.on_exit:
                    leave()
                answers.result(value, worker.rank)
                worker.returned[worker.rank] = 1
            exit_code = 0
        except _Stopped:
            stopped = True
        except BaseException as error:
            if os.getpid() == pid:
                answers.failure(error)
            elif isinstance(error, SystemExit):  # a child that the function has forked
                exit_code = error.code if isinstance(error.code, int) else error.code is not None
            else:
                traceback.print_exc()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this is the end already
        _write_out()
        if os.getpid() == pid:
            _remove_temporary_files()
        if stopped:  # and is seen to have been
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        os._exit(exit_code)


def _end_on_sigterm(answers: Answers, worker: WorkerContext) -> None:
    def stop(*_: object) -> None:
        if not worker.is_to_end():  # it was sent to the whole job; the launcher sees to it
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        answers.is_cut = True
        raise _Stopped

    # What the function forks is not asked to stop in this way. One that comes during the fork must not be lost.
    before = threading.local()

    def hold_back() -> None:
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def let_in() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def forget() -> None:
        if signal.getsignal(signal.SIGTERM) is stop:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        let_in()

    signal.signal(signal.SIGTERM, stop)
    os.register_at_fork(before=hold_back, after_in_parent=let_in, after_in_child=forget)


def _prepare(worker: WorkerContext) -> None:
    gc.enable()  # the server has disabled it
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whole lines, at once: not lost if it is killed, not mixed
            stream.reconfigure(line_buffering=True, write_through=False)
    prepare_process(worker.threads, worker.devices[worker.rank])
    enter(worker)


def _load(function: bytes, rank: int) -> Any:
    try:
        return pickling.loads_function(function)
    except Exception as error:
        raise ConfigurationError(
            f"launch: rank {rank} could not load the function: {type(error).__name__}: {error}. Workers import modules "
            f"as the caller does, from its sys.path and working directory"
        ) from error


def _write_out() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # closed, or nobody reads it, or the function has replaced it
            stream.flush()  # type: ignore[union-attr]


def _remove_temporary_files() -> None:
    """Those of multiprocessing, which it removes at the end of a process that ends in the ordinary way."""
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        tidying = threading.Thread(target=util._run_finalizers, daemon=True)  # which may wait for queues
        tidying.start()
        tidying.join(_TIDY_S)


def _describe(error: BaseException) -> bytes:
    """(the exception, pickled, or None if it cannot be; its last line; its traceback), pickled."""
    error.__traceback__, trace = None, error.__traceback__
    text = "".join(traceback.format_exception_only(error)).strip()
    full = "".join(traceback.format_exception(type(error), error, _own_frames(trace)))
    try:
        pickled = pickling.dumps(error)
        pickle.loads(pickled)
    except Exception:
        return pickle.dumps((None, text, full))
    return pickle.dumps((pickled, text, full))


def _own_frames(trace: Any) -> Any:
    """The traceback without the frames of this module at its start."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
