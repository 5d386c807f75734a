"""Hosts on a network."""

from __future__ import annotations

from dataclasses import dataclass, replace

from samegrad.errors import TopologyError
from samegrad.topology.check import MOST_NODES
from samegrad.topology.graph import Kind, Link, Node, Topology
from samegrad.topology.machines import PCIE_3_TEXTBOOK, pcie_switch

__all__ = ["ETHERNET", "Network", "flat"]


@dataclass(frozen=True, slots=True)
class Network:
    """A kind of network: its name, and the seconds of one of its links (a way over one switch has two)."""

    name: str
    latency: float


ETHERNET = Network("Ethernet", 10e-6)
"""TCP takes about 20 µs from one host to another over one switch, most of it in the two kernels."""


def flat(hosts: int, devices: int, rate: float, network: Network) -> Topology:
    """`hosts` on one switch. Each is a `pcie_switch` of `devices`, whose network card has `rate` bytes/s."""
    if hosts * (devices + 3) > MOST_NODES:
        raise TopologyError(f"{hosts} hosts of {devices} devices: at most {MOST_NODES} nodes")
    box = pcie_switch(devices)
    nodes = [Node("switch0", Kind.SWITCH)]
    links = []
    for number in range(hosts):
        host = f"host{number}"
        nodes += [replace(node, name=f"{host}/{node.name}", host=host) for node in box.nodes]
        nodes.append(Node(f"{host}/nic0", Kind.NIC, host))
        links += [replace(link, a=f"{host}/{link.a}", b=f"{host}/{link.b}") for link in box.links]
        links.append(Link(f"{host}/nic0", f"{host}/plx0", max(rate, PCIE_3_TEXTBOOK), kind="PCIe 3.0 x16"))
        links.append(Link(f"{host}/nic0", "switch0", rate, network.latency, kind=_label(network, rate)))
    return Topology(f"{network.name.lower()}-{hosts}x{devices}", tuple(nodes), tuple(links))


def _label(network: Network, rate: float) -> str:
    return f"{network.name} {rate * 8 / 1e9:g} Gb/s"
