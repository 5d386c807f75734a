"""A job of torchrun in which the last ranks serve a store, and the others, the workers, train.

    rank      0         1         2         3          of work_or_serve(function, servers=2)
    is        worker 0  worker 1  server 0  server 1

All ranks first tell each other how many shall serve and on which host they are. Then the servers offer their addresses,
and the workers join without them: for a Trainer there are no other ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from samegrad.errors import ConfigurationError, PeerTimeout
from samegrad.kvstore.handshake import is_loopback
from samegrad.kvstore.rendezvous import find_servers
from samegrad.kvstore.server import Server
from samegrad.memory import host_identity
from samegrad.workers.context import context
from samegrad.workers.devices import device_words
from samegrad.workers.joining import job_store, join, run_joined
from samegrad.workers.meeting import Meeting, own_address
from samegrad.workers.membership import Listeners, has_process_group, place_in_job
from samegrad.workers.settings import Settings
from samegrad.workers.variables import Place

__all__ = ["Role", "take_role", "work_or_serve"]

T = TypeVar("T")

_LOOK_S = 0.2
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Role:
    """What this rank does in a job whose last `servers` ranks serve: it is server `number`, or a worker if None.

    host: where a server listens. secret: what workers must know. store: in which servers are found.
    """

    number: int | None
    servers: int
    host: str
    secret: str | None = field(repr=False)
    store: Any = field(repr=False)
    timeout_s: float

    def addresses(self) -> list[str]:
        """Those of all servers, once they are there. Raises PeerTimeout."""
        return find_servers(self.store, self.servers, self.timeout_s)

    def serve(self, is_to_end: Callable[[], bool] = lambda: False) -> None:
        """Serves until all workers have left; or ends if `is_to_end` before the first one has come.

        Raises PeerFailed with the worker that has failed, PeerTimeout if none comes.
        """
        assert self.number is not None
        deadline = time.monotonic() + self.timeout_s
        with Server(self.host, secret=self.secret) as server:
            server.offer(self.store, self.number)
            while True:
                try:
                    server.wait(_LOOK_S)
                    return
                except PeerTimeout:
                    if is_to_end():
                        return
                    if time.monotonic() > deadline:
                        raise


def take_role(servers: int, secret: str | None, settings: Settings) -> Role:
    """The role of this rank of a job whose last `servers` ranks serve; a worker has joined the others then, as
    `settings` say. All ranks call it alike, before they use anything else of samegrad.

    Raises ConfigurationError outside of a job; where ranks do not agree; for a job of several hosts without a secret.
    """
    place = place_in_job()
    if place is None or context() is not None or has_process_group():
        raise ConfigurationError(
            "roles: whether this rank works or serves must be settled first, in a job of torchrun: before a process "
            "group is initialized, and before a Trainer or launch, which join the job with all its ranks"
        )
    worker = place.without_last(servers)
    store = job_store(place, settings.start_timeout_s)
    host = _agreed_host(place, servers, secret, Meeting(store, place.rank, place.size, settings.start_timeout_s))
    role = Role(None, servers, host, secret, store, settings.start_timeout_s)
    if worker is None:
        return replace(role, number=place.rank - (place.size - servers))
    join(replace(settings, apart=servers))
    return role


def _agreed_host(place: Place, servers: int, secret: str | None, meeting: Meeting) -> str:
    """Where this rank would serve: on the loopback interface if all ranks are on one host, else where others reach it.

    Raises ConfigurationError, on all ranks alike.
    """
    host, address = host_identity(), own_address(place.address, place.port)
    own = {"host": host, "address": address, "servers": servers, "secret": bool(secret)}
    records = meeting.exchange("roles", own)
    for rank, record in enumerate(records):
        for name in ("servers", "secret"):
            if record[name] != records[0][name]:
                raise ConfigurationError(
                    f"roles: all ranks must say alike how many of them serve, and whether there is a secret; rank 0 "
                    f"has {name} {records[0][name]}, rank {rank} has {record[name]}"
                )
    others = [record["address"] for record in records if record["host"] != host]
    if not others:
        return _LOOPBACK
    if not secret:
        raise ConfigurationError(
            "roles: the ranks are on several hosts, and a network is where anybody may come; servers need a secret "
            "that workers share (secret=..., --secret-file FILE)"
        )
    reached = [address, *(own_address(other, place.port) for other in others if other)]
    found = [each for each in reached if each and not is_loopback(each)]
    return found[0] if found else _LOOPBACK


def work_or_serve(
    function: Callable[[list[str]], T],
    *,
    servers: int,
    secret: str | None = None,
    devices: str | int | Sequence[str] = "auto",
    threads: int = 1,
    timeout_s: float | None = None,
    start_timeout_s: float = 300.0,
) -> T | None:
    """In a job of torchrun, has the last `servers` ranks serve a key-value store, and the others call
    `function(addresses)`, with those of the servers, for `KVStore.connect`. All ranks call it, first of all.

    Returns what the function has returned on this rank; None on a server, when all workers have closed their stores.
    For the workers the job has no other ranks: Trainer, launch and KVStore count them alone.

    secret: what servers and workers share; needed where the job has several hosts, and given to `KVStore.connect` then.
    devices, threads, timeout_s, start_timeout_s: see `launch`; the last is also how long servers wait for workers.

    In a process that no launcher has started, the servers are in that process, and it is the only worker.

    Raises ConfigurationError for what cannot work or is not alike on all ranks; PeerFailed on servers when a worker has
    failed; PeerTimeout for ranks that do not come; what the function raises.
    """
    settings = Settings(tuple(device_words(devices)), threads, timeout_s, start_timeout_s)
    if place_in_job() is None and context() is None:
        with ExitStack() as stack:
            alone = [stack.enter_context(Server(secret=secret)) for _ in range(servers)]
            return function([server.address for server in alone])
    role = take_role(servers, secret, settings)
    if role.number is not None:
        role.serve()
        return None
    return run_joined(partial(function, role.addresses()), settings, Listeners())
