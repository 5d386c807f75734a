"""Small processes of our own that a measurement needs: one that answers on loopback, one that forks.

They are new processes, not forks of this one, which may be large and has threads. Each ends when the pipe to its
standard input closes, which happens however this process ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator

from samegrad.errors import ConfigurationError
from samegrad.probing.wire import Listener

__all__ = ["fork_times", "helper_listening", "run"]

_START_S = 30.0
_END_S = 5.0


@contextlib.contextmanager
def helper_listening() -> Iterator[int]:
    """The port on 127.0.0.1 where another process answers `network`."""
    with _helper("listen") as process:
        yield int(_line(process, "listen"))


def fork_times(count: int) -> list[float]:
    """Seconds of `count` forks of a small process, each until its child has ended."""
    with _helper("fork", str(count)) as process:
        times: list[float] = json.loads(_line(process, "fork"))
    return times


@contextlib.contextmanager
def _helper(*words: str) -> Iterator[subprocess.Popen[str]]:
    code = "import sys; from samegrad.probing.helper import run; run(sys.argv[1:])"
    path = f"import sys; sys.path[:0] = {sys.path!r}; "
    process = subprocess.Popen(
        [sys.executable, "-c", path + code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _line(process: subprocess.Popen[str], what: str) -> str:
    """The line that the helper writes. Raises ConfigurationError if it does not come."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _START_S)
    line = process.stdout.readline() if ready else ""
    if not line:
        ended = process.poll()
        why = f"not within {_START_S:g} s" if ended is None else f"it ended with exit code {ended}"
        raise ConfigurationError(f"a process that was started to {what} has not answered: {why}")
    return line


def run(words: list[str]) -> None:
    """What a helper does."""
    match words:
        case ["listen"]:
            listener = Listener("127.0.0.1", 0)
            os.write(1, f"{listener.port}\n".encode())
            listener.serve(_parent_is_gone)
        case ["fork", count]:
            os.write(1, f"{json.dumps([_fork() for _ in range(int(count))])}\n".encode())


def _parent_is_gone() -> bool:
    """Whether the pipe to standard input is closed; nothing is ever written into it."""
    return bool(select.select([0], [], [], 0)[0])


def _fork() -> float:
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return time.perf_counter() - start
