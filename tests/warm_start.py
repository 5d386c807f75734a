"""`launch` in tests: what forks the workers is itself forked, from a process that has imported what they need.

`launch` starts a new Python for each call, and a short test then spends most of its time on importing torch. Here the
first call starts a Python that imports it, once for all tests of a pytest process, and never computes; it forks for
each call a process that does, word for word, what the new Python would have done. The tests of `workers` start the real
one, and so does every `python -m samegrad`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

__all__ = ["PIDS", "WarmStarts", "serve"]

PIDS: set[int] = set()
"""The process that forks, which stays from one test to the next."""

_IMPORTS = ("torch._dynamo", "torch.distributed", "samegrad.trainer.run")
_AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "GLIBC_", "MALLOC_")
"""What begins like this is read when a process starts: for another value there has to be another process."""

_ROOT = Path(__file__).parent.parent


class WarmStarts:
    """Stands in for the module `subprocess` in `samegrad.workers.launcher`; `close` ends what it has started."""

    def __init__(self) -> None:
        self._parent: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._environment: dict[str, str] = {}

    def module(self) -> SimpleNamespace:
        """What to put in the place of `subprocess`."""
        return SimpleNamespace(**{**vars(subprocess), "Popen": self._start})

    def close(self) -> None:
        """Ends the process that forks; to be called when all that it has forked has ended."""
        if self._parent is not None and self._requests is not None:
            self._requests.close()
            self._parent.wait(10)

    def _start(
        self,
        command: Sequence[str],
        pass_fds: tuple[int],
        stdin: int,
        stdout: int | None,
        stderr: int | None,
        env: Mapping[str, str],
    ) -> subprocess.Popen[bytes] | _Forked:
        """As `subprocess.Popen`."""
        started_with = {name: text for name, text in env.items() if name.startswith(_AT_START)}
        if self._requests is None:
            self._environment = started_with
            self._requests, theirs = socket.socketpair()
            code = (
                f"import sys; sys.path[:] = {sys.path!r}; from tests.warm_start import serve; serve({theirs.fileno()})"
            )
            self._parent = subprocess.Popen(
                [*command[:-2], "-c", code], pass_fds=(theirs.fileno(),), stdin=stdin, env=env, cwd=_ROOT
            )
            theirs.close()
            PIDS.add(self._parent.pid)
        if started_with != self._environment:
            return subprocess.Popen(command, pass_fds=pass_fds, stdin=stdin, stdout=stdout, stderr=stderr, env=env)
        return _Forked(self._requests, command[-1], pass_fds[0], (stdout, stderr), env)


class _Forked:
    """What `launch` uses of a Popen."""

    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def __init__(
        self, requests: socket.socket, code: str, fd: int, places: tuple[int | None, int | None], env: Mapping[str, str]
    ) -> None:
        self._status, theirs = socket.socketpair()
        self.returncode: int | None = None
        self.stdout, out = _place(places[0], 1)
        self.stderr, err = _place(places[1], 2)
        record = {"code": code, "fd": fd, "cwd": str(Path.cwd()), "env": dict(env), "launcher": os.getpid()}
        message = json.dumps(record).encode()
        socket.send_fds(requests, [len(message).to_bytes(4, "big")], [theirs.fileno(), fd, out, err])
        requests.sendall(message)
        theirs.close()
        os.close(out)
        os.close(err)
        self.pid = int.from_bytes(_exactly(self._status, 4), "big")

    def kill(self) -> None:
        """As `Popen.kill`."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """As `Popen.wait`."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                said = _exactly(self._status, 4)
            except TimeoutError:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0) from None
            self.returncode = int.from_bytes(said, "big", signed=True)
            self._status.close()
        return self.returncode


def _place(where: int | None, number: int) -> tuple[IO[bytes] | None, int]:
    """Our end, if it is a pipe, and what is to be the file `number` of the process."""
    if where == subprocess.PIPE:
        reading, writing = os.pipe()
        return os.fdopen(reading, "rb", buffering=0), writing
    return None, os.open(os.devnull, os.O_WRONLY) if where == subprocess.DEVNULL else os.dup(where or number)


def _exactly(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = end.recv(count - len(data))
        if not piece:
            raise EOFError("the process that forks for tests has ended")
        data += piece
    return data


def serve(fd: int) -> None:
    """The process that forks: imports, then forks for each request, and says how each of these processes ended."""
    for name in _IMPORTS:
        importlib.import_module(name)
    asked: dict[int, socket.socket] = {}
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(fileno=fd) as requests, selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(1 << 10)
                    _tell_who_ended(asked)
                elif not _answer(requests, asked):
                    return


def _tell_who_ended(asked: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with asked.pop(ended[0]) as status, contextlib.suppress(OSError):
                status.sendall(os.waitstatus_to_exitcode(ended[1]).to_bytes(4, "big", signed=True))


def _answer(requests: socket.socket, asked: dict[int, socket.socket]) -> bool:
    """Forks for the next request; False if there will be none any more."""
    length, fds, _, _ = socket.recv_fds(requests, 4, 4)
    if len(length) < 4:
        return False
    record = json.loads(_exactly(requests, int.from_bytes(length, "big")))
    status, *files = fds
    pid = os.fork()
    if pid == 0:
        try:
            _become(record, files)
        finally:
            os._exit(1)
    for file in files:
        os.close(file)
    asked[pid] = socket.socket(fileno=status)
    asked[pid].sendall(pid.to_bytes(4, "big"))
    return True


def _become(record: dict[str, Any], files: Sequence[int]) -> None:
    """Takes the place of the new Python that `launch` would have started."""
    from samegrad.workers import server
    from samegrad.workers.parent import die_with_parent

    signal.set_wakeup_fd(-1)
    own = os.getppid()
    # It would look whether its parent is still the launcher; its parent is the process that forks.
    vars(server)["die_with_parent"] = lambda parent: die_with_parent(own if parent == record["launcher"] else parent)
    high = [os.dup2(file, 1000 + number) for number, file in enumerate(files)]
    os.closerange(3, 1000)
    for file, number in zip(high, (record["fd"], 1, 2), strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(record["cwd"])
    os.environ.clear()
    os.environ.update(record["env"])
    exec(record["code"], {})
