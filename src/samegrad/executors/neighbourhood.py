"""Which ranks of a process group share a host, and how they come to read each other's memory."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from samegrad.executors.host_messages import Outgoing, Receiver, Sender, Watch
from samegrad.executors.pauses import spinning_s
from samegrad.machine import orders_stores
from samegrad.memory import host_identity, open_offered

__all__ = ["Gather", "Links", "Neighbourhood", "find_neighbourhood"]

Gather = Callable[[bytes], list[bytes]]
"""Every rank's record, by rank."""


@dataclass(frozen=True, slots=True)
class Links:
    """The ends of the messages to and from other ranks that go through memory, by rank; all others go another way."""

    senders: Mapping[int, Sender] = field(default_factory=dict)
    receivers: Mapping[int, Receiver] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """The ranks of one host, by rank the id of each process, in ascending order; `rank` is this one.

    watch: how they wait for each other.
    """

    rank: int
    pids: Mapping[int, int]
    watch: Watch

    def link(self, outgoing: Outgoing | None, sources: Collection[int], gather: Gather) -> Links:
        """Opens the memory of `sources`, and offers `outgoing`, in which all cells are listed. Every rank of the group
        calls it; both ends of a message find the same, which is why they tell each other what they could open."""
        ranks = list(self.pids)
        receivers: dict[int, Receiver] = {}
        offers = [json.loads(each) for each in gather(json.dumps(outgoing and outgoing.offer()).encode())]
        for peer, pid in self.pids.items():
            if peer in sources and offers[peer] is not None:
                with contextlib.suppress(OSError):  # its process is out of sight, as in another container
                    fd = open_offered(pid, offers[peer])
                    try:
                        receivers[peer] = Receiver(fd, ranks, self.rank, peer, self.watch)
                    finally:
                        os.close(fd)
        opened = [json.loads(each) for each in gather(json.dumps(list(receivers)).encode())]
        senders = {
            peer: outgoing.sender(peer, self.watch)
            for peer in ranks
            if outgoing is not None and self.rank in opened[peer]
        }
        return Links(senders, receivers)


def find_neighbourhood(
    rank: int, gather: Gather, timeout_s: float, is_vain: Callable[[], bool]
) -> Neighbourhood | None:
    """That of `rank`; None, on all ranks, where no two can share memory. Every rank of the group calls it."""
    can_share = orders_stores() and hasattr(os, "memfd_create")
    own = [host_identity() if can_share else None, os.getpid()]
    records = [json.loads(each) for each in gather(json.dumps(own).encode())]
    hosts = [host for host, _ in records if host is not None]
    if len(set(hosts)) == len(hosts):
        return None
    pids = {other: pid for other, (host, pid) in enumerate(records) if other == rank or (host and host == own[0])}
    watch = Watch(timeout_s, is_vain, spinning_s(len(pids)))
    return Neighbourhood(rank, pids, watch)
