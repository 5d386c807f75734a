"""Hosts on a network."""

from __future__ import annotations

from dataclasses import dataclass, replace

from samegrad.errors import TopologyError
from samegrad.topology.check import MOST_NODES
from samegrad.topology.graph import Kind, Link, Node, Topology
from samegrad.topology.machines import PCIE_3_TEXTBOOK

__all__ = ["ETHERNET", "INFINIBAND", "Network", "cluster", "with_card"]


@dataclass(frozen=True, slots=True)
class Network:
    """A kind of network: its name, and the seconds of one of its links (a way over one switch has two)."""

    name: str
    latency: float


ETHERNET = Network("Ethernet", 10e-6)
"""TCP takes about 20 µs from one host to another over one switch, most of it in the two kernels."""

INFINIBAND = Network("InfiniBand", 1e-6)
"""RDMA takes about 2 µs from one host to another over one switch (NVIDIA ConnectX-6 product brief: 0.6 µs a card)."""


def with_card(box: Topology, rate: float) -> Topology:
    """A `pcie_switch` with a network card on its switch, by as many lanes as the network's `rate` needs."""
    card = Link("nic0", "plx0", max(rate, PCIE_3_TEXTBOOK), kind="PCIe 3.0 x16" if rate <= PCIE_3_TEXTBOOK else "PCIe")
    return replace(box, nodes=(*box.nodes, Node("nic0", Kind.NIC, "host0")), links=(*box.links, card))


def cluster(box: Topology, hosts: int, rate: float, network: Network, racks: int = 1) -> Topology:
    """`hosts` like `box` on one switch, or so many in each of `racks`, whose switches are joined by a fat tree.

    Each network card of `box` is joined to the switch at `rate` bytes/s in each direction. The fat tree has the full
    rate of all cards: it is one switch here, to which each rack has a link as wide as its cards together.

    Raises TopologyError if `box` has no network card, or is more than one host; for too many nodes.
    """
    cards = [node.name for node in box.nodes if node.kind is Kind.NIC]
    if {node.host for node in box.nodes} != {"host0"} or not cards:
        raise TopologyError(f"a cluster is made of hosts with network cards; {box.name} is none")
    if racks * hosts * len(box.nodes) + racks >= MOST_NODES:
        raise TopologyError(
            f"{racks * hosts} hosts of {len(box.nodes)} nodes each: a topology has at most {MOST_NODES} nodes"
        )
    kind = f"{network.name} {rate * 8 / 1e9:g} Gb/s"
    nodes = [Node(f"switch{rack}", Kind.SWITCH) for rack in range(racks)]
    links = []
    for number in range(racks * hosts):
        host, switch = f"host{number}", f"switch{number // hosts}"
        nodes += [replace(node, name=f"{host}/{node.name}", host=host) for node in box.nodes]
        links += [replace(link, a=f"{host}/{link.a}", b=f"{host}/{link.b}") for link in box.links]
        links += [Link(f"{host}/{card}", switch, rate, network.latency, kind=kind) for card in cards]
    if racks > 1:
        nodes.append(Node("spine", Kind.SWITCH))
        width = hosts * len(cards)
        links += [
            Link(f"switch{rack}", "spine", rate * width, network.latency, kind=kind, count=width)
            for rack in range(racks)
        ]
    return Topology(f"{racks * hosts} {box.name}", tuple(nodes), tuple(links))
