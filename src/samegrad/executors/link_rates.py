"""Measures what joins the ranks of a process group: the latency and the bandwidth of sends and receives, as a topology.

All ranks send to their next one at once and receive from the one before, a small message and a large one: within each
host, then from host to host with one rank of each. That is how most schedules send.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from samegrad.executors.process_group import ProcessGroup
from samegrad.topology.graph import Kind, Link, Node, Topology

__all__ = ["measure_links"]

_OPERATION = "measuring the links"
_SMALL, _LARGE = 64, 1 << 20  # bytes
_ROUNDS = 5


class _Found(NamedTuple):
    """Seconds of a small message on its way from rank to rank; bytes/s of a large one."""

    latency: float
    bandwidth: float


def measure_links(group: ProcessGroup, hosts: Sequence[str]) -> Topology:
    """The ranks as devices of a topology; the same on all ranks, who all call this.

    hosts: for each rank a name of its host, equal for ranks of one host.
    """
    numbers = [sorted(set(hosts), key=hosts.index).index(name) for name in hosts]
    members = [[rank for rank, number in enumerate(numbers) if number == host] for host in range(max(numbers) + 1)]
    inside, across = _shift(group, members), _shift(group, [[own[0] for own in members]])
    adding = _add_rate(group)
    nodes = [Node(f"rank{rank}", Kind.DEVICE, f"host{number}", adding) for rank, number in enumerate(numbers)]
    nodes += [Node(f"host{host}", Kind.SWITCH, f"host{host}") for host in range(len(members))]
    whole = across or inside
    assert whole is not None, "a group of one rank has no links"
    inside = inside or _Found(0.0, whole.bandwidth)
    rest = _Found(max(whole.latency - inside.latency, 0.0), whole.bandwidth)
    links = [_half(f"rank{rank}", f"host{number}", inside, "within a host") for rank, number in enumerate(numbers)]
    if across is not None:
        nodes.append(Node("network", Kind.SWITCH))
        links += [_half(f"host{host}", "network", rest, "between hosts") for host in range(len(members))]
    return Topology("the links measured", tuple(nodes), tuple(links))


def _half(a: str, b: str, found: _Found, kind: str) -> Link:
    """One of the two links of a way, along which `found` was measured."""
    return Link(a, b, found.bandwidth, found.latency / 2, kind=kind)


def _shift(group: ProcessGroup, circles: Sequence[Sequence[int]]) -> _Found | None:
    """What is found where each rank of each circle sends to the next one at once; None if all are alone."""
    if all(len(circle) < 2 for circle in circles):
        return None
    own = next((circle for circle in circles if group.rank in circle and len(circle) > 1), None)
    times: dict[int, list[float]] = {}
    for nbytes in (_SMALL, _LARGE):
        outgoing, incoming = (torch.zeros(nbytes, dtype=torch.uint8, device=group.device) for _ in range(2))
        times[nbytes] = []
        for _ in range(_ROUNDS):
            group.gather(b"", _OPERATION)
            start = time.perf_counter()
            if own is not None:
                place = own.index(group.rank)
                ends = [
                    dist.P2POp(dist.isend, outgoing, own[(place + 1) % len(own)]),
                    dist.P2POp(dist.irecv, incoming, own[place - 1]),
                ]
                with group.failures_explained(_OPERATION):
                    for work in dist.batch_isend_irecv(ends):
                        work.wait()
            _finish(group.device)
            times[nbytes].append(time.perf_counter() - start)
    small, large = (_slowest(group, times[nbytes][1:]) for nbytes in (_SMALL, _LARGE))  # the first makes connections
    return _Found(small, _LARGE / max(large - small, large / 2))  # the latter where something has delayed small ones


def _add_rate(group: ProcessGroup) -> float:
    """Bytes of result per second that the slowest rank adds up."""
    a, b = (torch.zeros(_LARGE // 4, device=group.device) for _ in range(2))
    times = []
    for _ in range(_ROUNDS):
        _finish(group.device)
        start = time.perf_counter()
        a.add_(b)
        _finish(group.device)
        times.append(time.perf_counter() - start)
    return _LARGE / _slowest(group, times[1:])


def _slowest(group: ProcessGroup, times: Sequence[float]) -> float:
    """The median over the rounds of what the slowest rank took; the same on all ranks."""
    rows = [json.loads(record) for record in group.gather(json.dumps(list(times)).encode(), _OPERATION)]
    return statistics.median(float(max(each)) for each in zip(*rows, strict=True))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
