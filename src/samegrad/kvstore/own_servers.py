"""Servers of this host that end with the process that has started them.

    python -m samegrad.kvstore.own_servers

is one of them: it reads the secret from its standard input, writes its address to its standard output, and serves until
its standard input ends, which it does when whoever holds the other end closes it, or is no more.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from samegrad.errors import ConfigurationError, ServerLost
from samegrad.kvstore.handshake import new_nonce

__all__ = ["ServerList", "own_servers"]

_START_S = 60.0
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class ServerList:
    """Where the servers of a store are, and the secret that they share with their workers."""

    addresses: tuple[str, ...]
    secret: str | None = field(default=None, repr=False)


@contextlib.contextmanager
def own_servers(count: int) -> Iterator[ServerList]:
    """`count` servers in processes of their own, on the loopback interface, with a new secret.

    Raises ConfigurationError for a count that is not positive, ServerLost if one does not start.
    """
    if count < 1:
        raise ConfigurationError(f"expected at least one server; got {count}")
    secret = new_nonce()
    with contextlib.ExitStack() as stack:
        processes = [_start(secret) for _ in range(count)]
        for process in processes:
            stack.callback(_end, process)
        deadline = time.monotonic() + _START_S
        yield ServerList(tuple(_address(process, deadline) for process in processes), secret)


def _start(secret: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", __name__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already, which is told when its address is read
        process.stdin.write(f"{secret}\n".encode())
    return process


def _address(process: subprocess.Popen[bytes], deadline: float) -> str:
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0.0))
        piece = process.stdout.read(200) if ready else b""
        if not piece:
            state = f"ended with {process.poll()}" if ready else f"gave no address within {_START_S:g} s"
            raise ServerLost(f"a server of this host, process {process.pid}, {state}; its messages say why")
        line += piece
    return line.decode().strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; who started us ends us
    from samegrad.kvstore.server import Server
    from samegrad.workers.preparing import keep_freed_memory

    keep_freed_memory()
    secret = sys.stdin.readline().strip()
    with Server(secret=secret) as server:
        os.write(sys.stdout.fileno(), f"{server.address}\n".encode())
        sys.stdin.read()


if __name__ == "__main__":
    _serve()
