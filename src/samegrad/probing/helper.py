"""Small processes of our own that a measurement needs: one that answers on loopback, one that forks."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Iterator, Sequence

from samegrad.errors import ConfigurationError
from samegrad.own_process import OwnProcess
from samegrad.probing.wire import Listener

__all__ = ["fork_times", "helper_listening", "run"]

_START_S = 30.0


@contextlib.contextmanager
def helper_listening() -> Iterator[int]:
    """The port on 127.0.0.1 where another process answers `network`."""
    with OwnProcess(__name__, "listen") as process:
        yield int(_answer(process, "listen"))


def fork_times(count: int) -> list[float]:
    """Seconds of `count` forks of a small process, each until its child has ended."""
    with OwnProcess(__name__, "fork", str(count)) as process:
        times: list[float] = json.loads(_answer(process, "fork"))
    return times


def _answer(process: OwnProcess, what: str) -> str:
    try:
        return process.hear(_START_S)
    except OSError as error:
        raise ConfigurationError(f"a process that was started to {what} has not answered: {error}") from error


def run(words: Sequence[str]) -> None:
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
