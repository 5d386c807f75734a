"""The process that forks the workers: it imports what they need, forks, and then only watches.

A worker is forked from a process that has imported but never computed: forking one that has (threads of OpenMP, CUDA)
gives children that hang. So the caller may have used torch, threads or CUDA before; this process is always fresh.

It ends when all workers have ended, and takes them along when the caller, a worker or itself is killed: workers ask
the kernel to be killed with their parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pickle
import selectors
import signal
import socket
import time
from typing import Any

from samegrad.errors import SamegradError
from samegrad.workers.devices import parse_devices, usable_cores
from samegrad.workers.frames import FrameReader, Kind, read_frame, send_frame
from samegrad.workers.worker import run_worker

__all__ = ["die_with_parent", "main"]

_GRACE_S = 0.7  # between asking a worker to stop and killing it
_PR_SET_PDEATHSIG = 1


def main(fd: int, parent: int) -> None:
    """Serves the launcher `parent`, at the other end of the socket `fd`: forks its workers and relays what they say."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, which tells us
    die_with_parent(parent)
    launcher = socket.socket(fileno=fd)
    request, function = read_frame(launcher), read_frame(launcher)
    if request is None or function is None:
        return
    settings = request.json()
    for name in settings["preload"]:
        importlib.import_module(name)
    try:
        devices = _resolve(settings)
        if len(devices) > usable_cores():
            importlib.import_module(
                "torch._dynamo"
            )  # which torch.optim imports: here once, not in turns in each worker
    except SamegradError as error:
        send_frame(launcher, Kind.REFUSED, pickle.dumps(error))
        return
    workers = _fork(launcher, settings, devices, function.payload)
    del function
    try:
        send_frame(launcher, Kind.STARTED, json.dumps({"devices": devices, "pids": list(workers)}).encode())
        _Supervisor(launcher, workers).run()
    except BrokenPipeError:  # the launcher is gone
        pass
    finally:
        for pid in workers:
            _kill(pid, signal.SIGKILL)


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent, the process `parent`, ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def _resolve(settings: dict[str, Any]) -> list[str]:
    import torch

    # device_count asks the driver's library without starting CUDA, which a process that forks must not do.
    return parse_devices(
        settings["devices"],
        cuda=torch.cuda.device_count(),
        cores=usable_cores(),
        threads=settings["threads"],
        at_most=settings["at_most"],
    )


def _fork(
    launcher: socket.socket, settings: dict[str, Any], devices: list[str], function: bytes
) -> dict[int, tuple[int, socket.socket]]:
    """Starts one worker for each device; returns process id -> (rank, our end of its socket)."""
    memory_fd = os.memfd_create("samegrad", os.MFD_CLOEXEC)
    workers: dict[int, tuple[int, socket.socket]] = {}
    gc.collect()
    gc.freeze()  # objects made so far are not moved between generations, so their pages stay shared
    server = os.getpid()
    for rank in range(len(devices)):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            die_with_parent(server)
            for channel in [launcher, ours, *(other for _, other in workers.values())]:
                channel.close()
            run_worker(theirs, rank, tuple(devices), memory_fd, settings, function)
        theirs.close()
        ours.setblocking(False)
        workers[pid] = (rank, ours)
    os.close(memory_fd)
    return workers


class _Supervisor:
    """Relays what workers say, notices how they end, and stops the others after the first failure."""

    def __init__(self, launcher: socket.socket, workers: dict[int, tuple[int, socket.socket]]) -> None:
        self._launcher = launcher
        self._alive = workers
        self._readers = {rank: FrameReader() for rank, _ in workers.values()}
        self._answered: set[int] = set()
        self._kill_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(launcher, selectors.EVENT_READ)
        for rank, channel in workers.values():
            self._selector.register(channel, selectors.EVENT_READ, rank)
        wake, self._woken = socket.socketpair()
        wake.setblocking(False)
        self._woken.setblocking(False)
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake the selector
        self._wake = wake
        self._selector.register(self._woken, selectors.EVENT_READ)

    def run(self) -> None:
        """Returns when no worker is left."""
        self._reap()  # who ended before the handler was there
        while self._alive:
            wait_s = None if self._kill_at is None else max(self._kill_at - time.monotonic(), 0)
            for key, _ in self._selector.select(wait_s):
                if key.fileobj is self._launcher:
                    if not self._launcher.recv(4096):  # nothing is sent on it after the start, but it may be closed
                        self._selector.unregister(self._launcher)
                        self._stop()
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                else:
                    self._relay(key.data)
            self._reap()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                for pid in self._alive:
                    _kill(pid, signal.SIGKILL)
                self._kill_at = time.monotonic() + _GRACE_S

    def _channel(self, rank: int) -> socket.socket:
        return next(channel for other, channel in self._alive.values() if other == rank)

    def _relay(self, rank: int) -> None:
        """Passes on everything that has come from `rank`."""
        channel = self._channel(rank)
        while True:
            try:
                piece = channel.recv(1 << 20)
            except BlockingIOError:
                return
            except ConnectionResetError:
                piece = b""
            if not piece:
                if channel in self._selector.get_map():
                    self._selector.unregister(channel)
                return
            for frame in self._readers[rank].feed(piece):
                send_frame(self._launcher, frame.kind, frame.payload, rank)
                if frame.kind in (Kind.RESULT, Kind.FAILURE):
                    self._answered.add(rank)
                if frame.kind is Kind.FAILURE:
                    self._stop(failed=rank)

    def _reap(self) -> None:
        while self._alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid not in self._alive:
                continue
            rank, channel = self._alive[pid]
            self._relay(rank)
            del self._alive[pid]
            if channel in self._selector.get_map():
                self._selector.unregister(channel)
            channel.close()
            if rank not in self._answered and self._kill_at is None:
                died = {"pid": pid, "exit_code": os.waitstatus_to_exitcode(status)}
                send_frame(self._launcher, Kind.DIED, json.dumps(died).encode(), rank)
                self._stop()

    def _stop(self, failed: int = -1) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + _GRACE_S
            for pid, (rank, _) in self._alive.items():
                if rank != failed:
                    _kill(pid, signal.SIGTERM)


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
