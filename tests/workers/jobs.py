"""Jobs of several ranks that are not started by samegrad: by torchrun, or by variables alone."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.workers.processes import own_children

__all__ = ["PATIENCE_S", "Ended", "environment", "free_port", "start_ranks", "torchrun", "wait_for"]

PATIENCE_S = 100.0
_LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
)


@dataclass(frozen=True)
class Ended:
    """How a process has ended."""

    code: int
    out: str
    err: str


_FIRST, _LAST = 20_000, 30_000  # below those that the system gives to whoever connects


def free_port() -> int:
    """A port that nobody listens on; processes that test at the same time look in different places."""
    for port in range(_FIRST + os.getpid() * 13 % (_LAST - _FIRST), _LAST):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def environment() -> dict[str, str]:
    """That of this process, without what a launcher may have set, or a terminal."""
    return {name: text for name, text in os.environ.items() if name not in (*_LAUNCHERS, "FORCE_COLOR")} | {
        "COLUMNS": "80",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


@contextlib.contextmanager
def start_ranks(
    script: Path, size: int, *arguments: str, only: Sequence[int] | None = None
) -> Iterator[list[subprocess.Popen[str]]]:
    """Starts `size` ranks (or `only` some of them) of `script`, by variables alone; kills what is left in the end."""
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env={
                **environment(),
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (range(size) if only is None else only)
    ]
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def wait_for(ranks: Sequence[subprocess.Popen[str]]) -> list[Ended]:
    """How they end."""
    found = [process.communicate(timeout=PATIENCE_S) for process in ranks]
    return [Ended(process.returncode, *texts) for process, texts in zip(ranks, found, strict=True)]


def torchrun(ranks: int, *command: str) -> Ended:
    """How torchrun ends, which starts `ranks` ranks on this host; no process may be left."""
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", *command],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        ended = wait_for([process])[0]
    finally:
        process.kill()
    assert not [child for child in own_children() if child.is_running()]
    return ended
