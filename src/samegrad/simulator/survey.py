"""All algorithms on one topology: how each of them is best laid out there, and which is fastest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from samegrad.errors import ConfigurationError
from samegrad.schedules.catalog import ALGORITHMS, Algorithm, algorithm, build
from samegrad.schedules.compose import pipelined
from samegrad.schedules.ir import Schedule
from samegrad.schedules.options import Options
from samegrad.simulator.placed import PlacedSchedule, simulate
from samegrad.simulator.simulation import Simulation
from samegrad.topology import Kind, Topology, pack_rings, ring_order

__all__ = ["Candidate", "Survey", "first_devices", "laid_out", "simulate_all"]

_MOST_DEVICES = {"ring": 2048, "rings": 256, "one-shot": 256, "sharded": 256, "two-way-ring": 128, "two-way-rings": 128}
"""More of them send so many messages that one would have to wait: a survey leaves them out unless they are named."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An algorithm as it suits a topology. placement: the node of each rank; None for the usual one."""

    algorithm: Algorithm
    schedule: Schedule
    placement: tuple[str, ...] | None

    def simulate(self, topology: Topology, nbytes: float, barriers: bool = False) -> Simulation:
        """See `simulate`."""
        return simulate(self.schedule, topology, nbytes, barriers=barriers, placement=self.placement)

    def placed(self, topology: Topology, barriers: bool = False) -> PlacedSchedule:
        """For several sizes."""
        return PlacedSchedule(self.schedule, topology, barriers=barriers, placement=self.placement)


@dataclass(frozen=True, slots=True)
class Survey:
    """found: candidates and what they take, fastest first. left_out: why others are not among them, by name."""

    found: tuple[tuple[Candidate, Simulation], ...]
    left_out: dict[str, str]


def laid_out(name: str, topology: Topology, pieces: int = 1) -> Candidate:
    """The algorithm called `name` for all devices of `topology`; raises ConfigurationError if it does not fit.

    hierarchical: hosts are its groups. Rings go in the orders that `pack_rings` and `ring_order` find. servers: every
    host is one. pieces: that the buffer is cut into, see `pipelined`.
    """
    chosen, devices, options, helpers, placement = algorithm(name), topology.devices, Options(), None, None
    if name == "hierarchical":
        by_host = [list(own) for _, own in itertools.groupby(devices, lambda device: topology.node(device).host)]
        if len(by_host) > 1:
            options = Options(groups=(tuple(map(len, by_host)),))
    elif name in ("ring", "two-way-ring"):
        placement = tuple(devices[rank] for rank in ring_order(topology))
    elif name in ("rings", "two-way-rings") and len(devices) > 1:
        packing = pack_rings(topology)
        rings = packing.one_way
        options = Options(orders=tuple(ring.order for ring in rings), speeds=packing.speeds(rings))
    elif name == "servers":
        helpers = len(topology.hosts)
    schedule = build(name, len(devices), helpers, options=options)
    return Candidate(chosen, schedule if pieces == 1 else pipelined(schedule, pieces), placement)


def simulate_all(
    topology: Topology,
    nbytes: float,
    names: Sequence[str] | None = None,
    *,
    barriers: bool = False,
    pieces: int = 1,
) -> Survey:
    """What each algorithm takes for `nbytes` bytes on all devices of `topology`.

    names: of algorithms; all that fit if None. Raises ConfigurationError if one that is named does not fit, or none.
    """
    found: list[tuple[Candidate, Simulation]] = []
    left_out: dict[str, str] = {}
    problem: ConfigurationError | None = None
    for name in ALGORITHMS if names is None else dict.fromkeys(names):
        most = _MOST_DEVICES.get(name)
        if names is None and most is not None and len(topology.devices) > most:
            left_out[name] = f"sends very many messages between more than {most} devices; name it to see it"
            continue
        try:
            candidate = laid_out(name, topology, pieces)
            found.append((candidate, candidate.simulate(topology, nbytes, barriers)))
        except ConfigurationError as error:
            if names is not None:
                raise
            left_out[name] = str(error)
            problem = problem or error
    if problem is not None and not found:
        raise problem
    found.sort(key=lambda pair: float(f"{pair[1].seconds:.8e}"))  # equal but for rounding: in the order of the table
    return Survey(tuple(found), left_out)


def first_devices(topology: Topology, count: int) -> Topology:
    """The same with its first `count` devices only."""
    gone = set(topology.devices[count:])
    nodes = tuple(node for node in topology.nodes if node.name not in gone or node.kind is not Kind.DEVICE)
    links = tuple(link for link in topology.links if link.a not in gone and link.b not in gone)
    return replace(topology, nodes=nodes, links=links)
