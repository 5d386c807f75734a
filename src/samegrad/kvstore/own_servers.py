"""Servers of this host that end with the process that has started them.

Each is told the secret, says its address, and serves until its standard input ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from samegrad.errors import ConfigurationError, ServerLost
from samegrad.own_process import OwnProcess
from samegrad.shared_secret import new_nonce

__all__ = ["ServerList", "own_servers", "run"]

_START_S = 60.0


@dataclass(frozen=True, slots=True)
class ServerList:
    """Where the servers of a store are, and the secret that they share with their workers.

    authority: the file with the certificate that has signed those of the servers; None without TLS.
    """

    addresses: tuple[str, ...]
    secret: str | None = field(default=None, repr=False)
    authority: str | None = None


@contextlib.contextmanager
def own_servers(count: int) -> Iterator[ServerList]:
    """`count` servers in processes of their own, on the loopback interface, with a new secret.

    Raises ConfigurationError for a count that is not positive, ServerLost if one does not start.
    """
    if count < 1:
        raise ConfigurationError(f"expected at least one server; got {count}")
    secret = new_nonce()
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(OwnProcess(__name__)) for _ in range(count)]
        for server in servers:
            server.tell(secret)
        deadline = time.monotonic() + _START_S
        yield ServerList(tuple(_address(server, deadline) for server in servers), secret)


def _address(server: OwnProcess, deadline: float) -> str:
    try:
        return server.hear(max(deadline - time.monotonic(), 0.0))
    except OSError as error:
        raise ServerLost(f"a server of this host gave no address: {error}") from error


def run(_: Sequence[str]) -> None:
    """What such a process does."""
    from samegrad.kvstore.server import Server
    from samegrad.workers.preparing import keep_freed_memory

    keep_freed_memory()
    secret = sys.stdin.readline().strip()
    with Server(secret=secret) as server:
        os.write(sys.stdout.fileno(), f"{server.address}\n".encode())
        sys.stdin.read()
