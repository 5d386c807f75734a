"""Which strategies there are to choose from, for the first k devices of a topology."""

from __future__ import annotations

from itertools import groupby

from samegrad.errors import TopologyError
from samegrad.schedules.catalog import ALGORITHMS
from samegrad.simulator.survey import first_devices
from samegrad.strategy import Strategy
from samegrad.topology.graph import Topology
from samegrad.topology.rings import RingPacking, pack_rings, ring_order

__all__ = ["candidates", "hosts_of", "label", "ways_of_hosts"]

_MANY = 256
_BY_FEW_MESSAGES = ("one-device", "host", "halving-doubling", "binomial-tree", "hierarchical", "servers")
"""Ways that send few messages, also over many devices; to simulate the others would take minutes there."""


def candidates(topology: Topology, devices: int, exact: bool) -> list[Strategy]:
    """All ways to add up over the first `devices` devices: `ways_of_hosts`, and, if not `exact`, rings that go by the
    links between them."""
    found = ways_of_hosts(hosts_of(topology, devices), exact)
    return found if exact or not 1 < devices <= _MANY else [*found, *_rings(topology, devices)]


def ways_of_hosts(hosts: list[int], exact: bool) -> list[Strategy]:
    """The ways to add up over devices of which so many follow each other in each host, in the order of the catalog:
    those that follow the tree, the others too if not `exact`. `hierarchical` goes by the hosts.

    Of more than 256 devices, only ways that send few messages are tried.
    """
    devices = sum(hosts)
    if devices == 1:
        return [Strategy("one-device")]
    found = []
    for name, each in ALGORITHMS.items():
        if not each.follows_tree and (exact or name in ("rings", "two-way-rings")):
            continue
        if devices > _MANY and name not in _BY_FEW_MESSAGES:
            continue
        if name == "hierarchical":
            found += _hierarchical(hosts)
        elif name == "servers":
            found += [Strategy(name), Strategy(name, helpers=devices)][: 2 if devices <= _MANY else 1]
        else:
            found.append(Strategy(name))
    return found


def hosts_of(topology: Topology, devices: int) -> list[int]:
    """How many of the first `devices` devices follow each other in one host, for each such group."""
    names = [topology.node(name).host for name in topology.devices[:devices]]
    return [len(list(same)) for _, same in groupby(names)]


def label(strategy: Strategy) -> str:
    """The algorithm and what it is told, as people read it in a table."""
    words = [strategy.algorithm]
    if strategy.helpers is not None:
        words.append(f"on {strategy.helpers}")
    if strategy.groups is not None:
        words.append("/".join(_sizes(level) for level in strategy.groups))
    if strategy.ways is not None:
        words.append("+".join(strategy.ways))
    if strategy.orders is not None:
        words.append(f"{len(strategy.orders)} found")
    return " ".join(words)


def _sizes(sizes: tuple[int, ...]) -> str:
    return f"{len(sizes)}x{sizes[0]}" if len(set(sizes)) == 1 else ",".join(map(str, sizes))


def _hierarchical(hosts: list[int]) -> list[Strategy]:
    devices = sum(hosts)
    groups = [tuple(hosts)] if 1 < len(hosts) < devices else []
    if len(hosts) == 1:  # halves and pairs: two sockets, or the devices of one switch
        groups = [((devices + 1) // 2, devices // 2)] if devices > 2 else []
        groups += [(2,) * (devices // 2)] if devices % 2 == 0 and devices > 4 else []
    return [
        Strategy("hierarchical", groups=(sizes,), ways=("sharded", outer))
        for sizes in groups
        for outer in ("sharded", "halving-doubling")[: 1 if len(sizes) == 2 else 2]
    ]


def _rings(topology: Topology, devices: int) -> list[Strategy]:
    part = first_devices(topology, devices)
    found = []
    try:
        order = ring_order(part)
        if order != tuple(range(devices)):
            found += [Strategy("rings", orders=(order,)), Strategy("two-way-rings", orders=(order,))]
        packing = pack_rings(part)
    except TopologyError:  # no ring has a way
        return found
    if len(packing.rings) > 2 or (len(packing.rings) > 1 and len(packing.one_way) == len(packing.rings)):
        for name, rings in (("rings", packing.rings), ("two-way-rings", packing.one_way)):
            if name == "rings" or len(rings) < len(packing.rings):
                orders, speeds = tuple(ring.order for ring in rings), RingPacking.speeds(rings)
                found.append(Strategy(name, orders=orders, speeds=speeds))
    return found
