"""Where ranks are in a topology, and what their messages pass: links, and what adds up.

A message passes the links of its route. It also counts as one message on each of them that has a time per message: such
a link takes a message at most every `per_message` seconds. What a node adds in a second is shared by all that it adds.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from samegrad.errors import ConfigurationError
from samegrad.schedules.cut import Cut
from samegrad.simulator.engine import Routes
from samegrad.simulator.messages import Messages
from samegrad.simulator.sharing import Integers
from samegrad.topology.graph import Topology

__all__ = ["Wiring", "place", "wire"]


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """Routes of messages. By message: numbers of the routes, of the links (-1: within a rank), of the entrance that
    counts messages (-1: nothing to wait for), and of what adds (-1: takes no time)."""

    routes: Routes
    way: Integers
    entrance: Integers
    adder: Integers


def place(cut: Cut, topology: Topology, placement: Sequence[str] | None = None) -> tuple[str, ...]:
    """The node of each rank: ranks that hold leaves are devices in their order, others hosts, over and over.

    Raises ConfigurationError if the topology has too few of them, or if `placement` does not name a node for each rank.
    """
    if placement is not None:
        if len(placement) != cut.ranks:
            raise ConfigurationError(f"placement: {cut.ranks} ranks need as many nodes; got {len(placement)}")
        for name in placement:
            topology.node(name)
        return tuple(placement)
    holders = cut.holders
    if len(holders) > len(topology.devices):
        raise ConfigurationError(
            f"{topology.name} has {len(topology.devices)} devices, too few for {len(holders)} ranks that hold gradients"
        )
    if len(holders) < cut.ranks and not topology.hosts:
        raise ConfigurationError(
            f"{topology.name} has no node of kind host for ranks that hold no gradients; give a `placement`"
        )
    devices, helpers = iter(topology.devices), 0
    names = []
    for nodes in cut.nodes:
        if nodes:
            names.append(next(devices))
        else:
            names.append(topology.hosts[helpers % len(topology.hosts)])
            helpers += 1
    return tuple(names)


def wire(messages: Messages, names: Sequence[str], topology: Topology) -> Wiring:
    """Finds the routes of all messages between ranks at these nodes."""
    made = _Made(topology)
    pairs, pair = np.unique(messages.source.astype(np.int64) * len(names) + messages.target, return_inverse=True)
    ways, entrances = np.full(len(pairs), -1), np.full(len(pairs), -1)
    for number, key in enumerate(pairs.tolist()):
        source, target = divmod(key, len(names))
        if source != target:
            ways[number], entrances[number] = made.way(names[source], names[target])
    adders = np.array([made.adder(name) for name in names])
    adder = np.where(messages.added > 0, adders[messages.target], -1)
    return Wiring(made.routes(), ways[pair], entrances[pair], adder)


class _Made:
    """Routes that were made so far. Resources: directed links, then the same as counters of messages, then adders."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._links = 2 * len(topology.links)
        self._latencies: list[float] = topology.latencies.tolist()
        per_message = topology.per_messages
        self._counted = set(np.flatnonzero(per_message).tolist())
        with np.errstate(divide="ignore"):
            self._capacity = [topology.capacities, 1 / per_message]
        self._starts, self._passed, self._latency = [0], array("q"), array("d")
        self._rates = array("d")
        self._numbers: dict[tuple[int, ...] | str, int] = {}

    def way(self, source: str, target: str) -> tuple[int, int]:
        """The routes of the bytes and of the message itself between two nodes."""
        passed = self._topology.route(source, target)
        way = self._add(passed, sum([self._latencies[link] for link in passed])) if passed else -1
        counting = tuple(self._links + link for link in passed if link in self._counted) if self._counted else ()
        if counting and counting not in self._numbers:
            self._numbers[counting] = self._add(counting, 0.0)
        return way, self._numbers[counting] if counting else -1

    def adder(self, name: str) -> int:
        """The route into what adds at a node; -1 if that takes no time."""
        rate = self._topology.node(name).add_rate
        if rate is None:
            return -1
        if name not in self._numbers:
            self._numbers[name] = self._add((2 * self._links + len(self._rates),), 0.0)
            self._rates.append(rate)
        return self._numbers[name]

    def routes(self) -> Routes:
        """All of them."""
        capacity = np.concatenate([*self._capacity, np.array(self._rates)])
        return Routes(np.array(self._starts), np.array(self._passed), np.array(self._latency), capacity)

    def _add(self, passed: tuple[int, ...], latency: float) -> int:
        self._passed.extend(passed)
        self._starts.append(len(self._passed))
        self._latency.append(latency)
        return len(self._latency) - 1
