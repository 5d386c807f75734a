"""The life of a worker, from the moment it was forked."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import random
import signal
import socket
import sys
import threading
import traceback
from typing import Any, NoReturn

from samegrad.workers import pickling
from samegrad.workers.context import WorkerContext, enter
from samegrad.workers.frames import Kind, send_frame

__all__ = ["run_worker"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt, in malloc.h
_KEEP_BYTES = (1 << 31) - 1


class _Stopped(SystemExit):
    """Raised in a worker that is asked to stop, so that its `finally` blocks run."""


def run_worker(
    channel: socket.socket,
    rank: int,
    devices: tuple[str, ...],
    memory_fd: int,
    settings: dict[str, Any],
    function: bytes,
) -> NoReturn:
    """Runs the pickled `function` as worker `rank`, sends its answer, and ends the process."""
    exit_code = 1
    try:
        signal.signal(signal.SIGTERM, _stop)
        sending = threading.Lock()

        def send(kind: Kind, payload: bytes) -> None:
            with sending:
                send_frame(channel, kind, payload)

        worker = WorkerContext(
            rank=rank,
            devices=devices,
            memory_fd=memory_fd,
            threads=settings["threads"],
            timeout_s=settings["timeout_s"],
            send_report=lambda record: send(Kind.REPORT, json.dumps(record).encode()),
        )
        try:
            _prepare(worker)
            value = pickle.loads(function)()
            for leave in worker.on_exit:
                leave()
            send(Kind.RESULT, pickling.dumps(value) if rank == 0 else b"")
            exit_code = 0
        except _Stopped:
            exit_code = 128 + signal.SIGTERM
        except BaseException as error:
            send(Kind.FAILURE, _describe(error))
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
                stream.flush()
        os._exit(exit_code)


def _stop(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stopped


def _prepare(worker: WorkerContext) -> None:
    import torch

    _keep_freed_memory()
    torch.set_num_threads(worker.threads)
    # Every worker starts with the same generators, in every run: what a script draws before it trains (weights, say)
    # does not depend on the rank, nor on the day.
    random.seed(0)
    torch.manual_seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if worker.devices[worker.rank].startswith("cuda"):
        torch.cuda.set_device(worker.devices[worker.rank])
    enter(worker)


def _keep_freed_memory() -> None:
    """Tells glibc's malloc to reuse large blocks instead of giving them back to the kernel after every use.

    A step frees and asks for the same activations and gradients again and again; fresh pages must be zeroed first.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)


def _describe(error: BaseException) -> bytes:
    """(the exception or None if it cannot be pickled, its one-line text, its traceback), pickled."""
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
