"""Where the ranks of a job find each other before they have a group: a key-value store at an address all of them know.

torchrun serves it; under launchers that only set variables, rank 0 does. Records are JSON. Every wait ends.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from samegrad.errors import ConfigurationError, GroupError, PeerFailed, PeerTimeout
from samegrad.workers.variables import Place

__all__ = ["Meeting", "address_of", "interface_of", "open_store", "own_address", "serve_store"]

_RETRY_S = 0.1
_READING_S = 10.0
_BACKLOG = 1024


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
        if serves:
            return serve_store(place.address, place.port, left)
        return TCPStore(place.address, place.port, is_master=False, timeout=left, wait_for_workers=False)

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


def serve_store(address: str, port: int, timeout: timedelta) -> Any:
    """A store that this process serves at `address`:`port` (0: any that is free), and nowhere else if it can be helped.

    torch would have it listen to all networks, and a store asks nobody who they are. It still does where `address` is
    none of this host (behind a translation of addresses), or may lead to another one elsewhere: many hosts take their
    own name for a loopback address. Raises RuntimeError with EADDRINUSE if the port is taken.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listener = _listening(address, port)
    if listener is not None:
        port = listener.getsockname()[1]
    return TCPStore(
        address,
        port,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=None if listener is None else listener.detach(),
    )


def _listening(address: str, port: int) -> socket.socket | None:
    """A socket that listens at `address`:`port` only; None if torch shall choose."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        return None
    if _is_loopback(str(place[0])) and address != "localhost" and not _is_loopback(address):
        return None
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(_BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):  # in use: maybe by a store of this process, to share
            return None
        raise RuntimeError(f"{address}:{port} cannot be listened at: {error}") from error


def own_address(address: str, port: int) -> str | None:
    """The address by which this host would speak to `address`; None if that is not known."""
    try:
        family, kind, _, _, there = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_of(place: Place, others: Sequence[str | None]) -> str | None:
    """The name of the network interface of this host that leads to where the ranks meet; None if that is not known.

    others: the `own_address` of ranks on other hosts. Where the ranks meet at a name that this host takes for a
    loopback address, which leads to none of them, the interface is the one that leads there.
    """
    import psutil

    if not place.address:
        return None
    own = own_address(place.address, place.port)
    known = [other for other in others if other is not None and not _is_loopback(other)]
    if known and own is not None and _is_loopback(own):
        own = own_address(known[0], place.port)
    names = [name for name, found in psutil.net_if_addrs().items() if any(entry.address == own for entry in found)]
    return names[0] if names else None


def address_of(interface: str) -> str | None:
    """An address of the network interface of this host, of IPv4 if it has one; None if it has none."""
    import psutil

    found = psutil.net_if_addrs().get(interface, [])
    known = [entry.address for family in (socket.AF_INET, socket.AF_INET6) for entry in found if entry.family == family]
    return known[0] if known else None


def _is_loopback(address: str) -> bool:
    """Whether the text is an address, and of the loopback network."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


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
