"""Where the ranks of a job find each other before they have a group: a key-value store at an address all of them know.

torchrun serves it; under launchers that only set variables, rank 0 does. Records are JSON. Every wait ends.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from samegrad.errors import ConfigurationError, GroupError, PeerFailed, PeerTimeout
from samegrad.workers.variables import Place

__all__ = ["Meeting", "interface_towards", "open_store"]

_RETRY_S = 0.1
_READING_S = 10.0


class Meeting:
    """The ranks of a job at `store` (of torch.distributed), seen from `rank`; all meet until `timeout_s` from now."""

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._timeout_s = timeout_s
        self._meet_by = time.monotonic() + timeout_s

    def exchange(self, name: str, record: Any) -> list[Any]:
        """Every rank's `record`, a JSON value, by rank. `name`: what it is about, another one each time.

        Raises PeerTimeout with the ranks that have not come, PeerFailed if the store is gone.
        """
        keys = [f"{name}/{rank}" for rank in range(self._size)]
        left_s = max(self._meet_by - time.monotonic(), 0.001)
        try:
            self._store.set(keys[self._rank], json.dumps(record))
            try:
                self._store.wait(keys, timedelta(seconds=left_s))
            except RuntimeError:
                if time.monotonic() < self._meet_by - _RETRY_S:  # not the deadline, which is kept in milliseconds
                    raise
                raise self._late(name, keys) from None
            records = [json.loads(self._store.get(key)) for key in keys]
            self._wait_for_readers([f"{key}/read" for key in keys])
            return records
        except RuntimeError as error:
            if isinstance(error, GroupError):
                raise
            raise PeerFailed(
                f"rank {self._rank} of {self._size} lost the store in which the ranks meet ({name}): {_brief(error)}. "
                f"It is served by torchrun on the first host, or else by rank 0, which has failed or ended",
                rank=0,
            ) from error

    def _wait_for_readers(self, keys: list[str]) -> None:
        """Says that this rank has read; rank 0 waits for the others, since it may serve the store and end next."""
        self._store.set(keys[self._rank], "")
        if self._rank == 0:
            with contextlib.suppress(RuntimeError):
                self._store.wait(keys, timedelta(seconds=_READING_S))

    def _late(self, name: str, keys: list[str]) -> PeerTimeout:
        late = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        ranks = f"rank{'s' * (len(late) > 1)} {', '.join(map(str, late))}"
        return PeerTimeout(
            f"rank {self._rank} of {self._size} waited {self._timeout_s:g} s at the start ({name}), but {ranks} did "
            f"not come. Was the same script started on every host, with the same WORLD_SIZE? If starting takes this "
            f"long, give launch a longer start_timeout_s",
            rank=late[0] if late else -1,
        )


def open_store(place: Place, is_served: bool, timeout_s: float) -> Any:
    """The store at the address of `place`; rank 0 serves it, unless the launcher does (`is_served`).

    Raises ConfigurationError if the port is taken, PeerTimeout if nothing that is the store answers in time.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    serves = place.rank == 0 and not is_served
    where = f"MASTER_ADDR={place.address}, MASTER_PORT={place.port}"
    deadline = time.monotonic() + timeout_s
    if not serves:
        _wait_for_server(place, where, deadline, timeout_s)

    def connect() -> Any:
        left = timedelta(seconds=max(deadline - time.monotonic(), 0.001))
        return TCPStore(
            place.address, place.port, is_master=serves, timeout=left, wait_for_workers=False, multi_tenant=True
        )

    try:
        return _within(connect, deadline)
    except TimeoutError:
        raise PeerTimeout(
            f"rank {place.rank} of {place.size} has reached {where}, but what answers there is not the store of this "
            f"job: another program uses the port. Choose another MASTER_PORT",
            rank=0,
        ) from None
    except RuntimeError as error:
        if serves and "EADDRINUSE" in str(error):
            raise ConfigurationError(
                f"rank 0 cannot serve the meeting of the ranks at {where}: port {place.port} is in use on this host, "
                f"by another job or program. Choose another MASTER_PORT"
            ) from error
        raise PeerTimeout(
            f"rank {place.rank} of {place.size} could not meet the others at {where}: {_brief(error)}", rank=0
        ) from error


def interface_towards(place: Place) -> str | None:
    """The name of the network interface of this host that leads to where the ranks meet; None if that is not known."""
    import psutil

    if not place.address:
        return None
    try:
        family, kind, _, _, address = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            own = probe.getsockname()[0]
    except OSError:
        return None
    names = [name for name, found in psutil.net_if_addrs().items() if any(entry.address == own for entry in found)]
    return names[0] if names else None


def _wait_for_server(place: Place, where: str, deadline: float, timeout_s: float) -> None:
    """Returns when something answers at the address. (torch's own waiting prints pages of traceback.)"""
    while True:
        left_s = max(deadline - time.monotonic(), 0.001)
        try:
            socket.create_connection((place.address, place.port), timeout=left_s).close()
            return
        except OSError as error:
            if time.monotonic() + _RETRY_S >= deadline:
                raise PeerTimeout(
                    f"rank {place.rank} of {place.size} tried for {timeout_s:g} s to reach the meeting of the ranks at "
                    f"{where}: {error}. Does rank 0 run, on the host of that name, and can this host reach it?",
                    rank=0,
                ) from error
        time.sleep(_RETRY_S)


def _within(function: Callable[[], Any], deadline: float) -> Any:
    """What `function` returns or raises; TimeoutError if it does neither before `deadline`, and is left behind.

    A client of torch's store waits for ever for an answer of a server that is none.
    """
    answers: list[Any] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(function())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(max(deadline - time.monotonic(), 0.001) + 1.0)  # its own deadline comes first, where it has one
    if failures:
        raise failures[0]
    if not answers:
        raise TimeoutError
    return answers[0]


def _brief(error: Exception) -> str:
    """The message of an error of torch without the stack of C++ behind it."""
    return str(error).partition("\n")[0]
