"""Watching workers: relays what they say, notices how they end, and stops the others after the first failure."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from samegrad.workers.frames import Channel, Kind

__all__ = ["Supervisor", "Worker", "end_children"]

_GRACE_S = 0.7  # between asking a worker to stop and killing it
_CHILD_GRACE_S = 0.3  # the same for what workers left behind
_ENOUGH = 1 << 22  # bytes that wait for the launcher; with more, workers have to wait too


@dataclass(slots=True)
class Worker:
    """A worker that runs; `answered` when it has sent its result or its failure."""

    pid: int
    rank: int
    channel: Channel
    answered: bool = False


class Supervisor:
    """Stands between the launcher and `workers`; to be made in the process that forked them.

    ask_to_stop: tells the workers, when the launcher says so, that they should come to an end.
    say_end: tells them that the SIGTERM that follows is from here.
    leave_sigterm: has SIGTERM left to the launcher from now on, as one of them is about to save when it is stopped.
    """

    def __init__(
        self,
        launcher: Channel,
        workers: Sequence[Worker],
        ask_to_stop: Callable[[], None],
        say_end: Callable[[], None] = lambda: None,
        leave_sigterm: Callable[[], None] = lambda: None,
    ) -> None:
        self._launcher, self._ask_to_stop, self._say_end = launcher, ask_to_stop, say_end
        self._leave_sigterm = leave_sigterm
        self._alive = {worker.pid: worker for worker in workers}
        self._kill_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake the selector

    def run(self) -> None:
        """Returns when no worker is left."""
        self._reap()  # who ended before the handler was there
        while self._alive:
            self._choose()
            for key, _ in self._selector.select(self._wait_s()):
                if key.fileobj is self._woken:
                    self._woken.recv(4096)
                elif key.fileobj is self._launcher:
                    self._listen_to_launcher()
                elif key.data.pid in self._alive:
                    self._relay(key.data)
            self._reap()
            self._kill_who_stays()
        signal.set_wakeup_fd(-1)
        for opened in (self._selector, self._wake, self._woken):
            opened.close()

    def _wait_s(self) -> float | None:
        return None if self._kill_at is None else max(self._kill_at - time.monotonic(), 0)

    def _choose(self) -> None:
        """Decides whom to listen to: no worker while the launcher is slow to read, nobody who has said all."""
        launcher = self._launcher
        writing = selectors.EVENT_WRITE if launcher.pending else 0
        self._want(launcher, writing | (0 if launcher.at_end else selectors.EVENT_READ))
        has_room = launcher.pending < _ENOUGH
        for worker in self._alive.values():
            listening = has_room and not worker.channel.at_end
            self._want(worker.channel, selectors.EVENT_READ if listening else 0, worker)

    def _want(self, channel: Channel, events: int, worker: Worker | None = None) -> None:
        key = self._selector.get_map().get(channel)
        if key is None and events:
            self._selector.register(channel, events, worker)
        elif key is not None and not events:
            self._selector.unregister(channel)
        elif key is not None and key.events != events:
            self._selector.modify(channel, events, worker)

    def _listen_to_launcher(self) -> None:
        self._launcher.flush()
        for frame in self._launcher.receive() or ():
            if frame.kind is Kind.STOP:
                self._ask_to_stop()
        if self._launcher.at_end:
            self._stop()

    def _relay(self, worker: Worker) -> bool:
        """Passes the next piece of what `worker` says on; False if there is none."""
        frames = worker.channel.receive()
        for frame in frames or ():
            if frame.kind is Kind.SAVING:
                self._leave_sigterm()
            self._launcher.send(frame.kind, frame.payload, worker.rank)
            if frame.kind in (Kind.RESULT, Kind.FAILURE):
                worker.answered = True
            if frame.kind is Kind.FAILURE:
                self._stop(failed=worker)
        return frames is not None and not worker.channel.at_end

    def _reap(self) -> None:
        while self._alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            worker = self._alive.get(pid)
            if worker is None:  # a child of a worker, left behind
                continue
            while self._relay(worker):  # what it said last
                pass
            self._want(worker.channel, 0)
            worker.channel.close()
            del self._alive[pid]
            if not worker.answered and self._kill_at is None:
                died = {"pid": pid, "exit_code": os.waitstatus_to_exitcode(status)}
                self._launcher.send(Kind.DIED, json.dumps(died).encode(), worker.rank)
                self._stop()

    def _stop(self, failed: Worker | None = None) -> None:
        """Asks all workers to end, but not `failed`, which is about to."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + _GRACE_S
            self._say_end()
            for worker in self._alive.values():
                if worker is not failed:
                    _kill(worker.pid, signal.SIGTERM)

    def _kill_who_stays(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at += _GRACE_S
            for pid in self._alive:
                _kill(pid, signal.SIGKILL)


def end_children() -> None:
    """Ends all children of this process, asking them first, then killing them."""
    kill_at = time.monotonic() + _CHILD_GRACE_S
    asked: set[int] = set()
    while (children := _children()) and time.monotonic() < kill_at + _GRACE_S:
        is_late = time.monotonic() >= kill_at
        for pid in children:
            if is_late or pid not in asked:
                _kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
                asked.add(pid)
        time.sleep(0.005)


def _children() -> list[int]:
    """The children of this process that have not ended; those that have are reaped."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:  # a kernel that does not list them
        return []


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
