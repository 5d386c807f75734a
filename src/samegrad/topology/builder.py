"""Puts a topology together, node by node and link by link."""

from __future__ import annotations

from samegrad.topology.graph import Kind, Link, Node, Topology
from samegrad.topology.link_types import LINK_TYPES, MEMORY, LinkType, pcie

__all__ = ["Builder"]


class Builder:
    """Collects nodes, all of one host unless said otherwise, and links."""

    def __init__(self, host: str = "host0") -> None:
        self.host = host
        self.nodes: list[Node] = []
        self.links: list[Link] = []

    def node(self, name: str, kind: Kind, host: str | None = None) -> str:
        """Adds a node and returns its name."""
        self.nodes.append(Node(name, kind, self.host if host is None else host))
        return name

    def link(self, a: str, b: str, bandwidth: float, kind: str) -> None:
        """Adds one link of `bandwidth` bytes/s."""
        self.links.append(Link(a, b, bandwidth, kind=kind))

    def links_of(self, a: str, b: str, count: int, kind: LinkType, rate: float | None = None) -> None:
        """Adds `count` parallel links of one type, or of `rate` bytes/s each."""
        each = kind.bandwidth if rate is None else rate
        self.links.append(Link(a, b, each * count, kind=kind.name, count=count))

    def pcie(self, a: str, b: str, generation: int = 3, lanes: int = 16) -> None:
        """Adds a PCIe connection."""
        speed = {3: "8 GT/s", 4: "16 GT/s", 5: "32 GT/s", 6: "64 GT/s"}[generation]
        self.link(a, b, *pcie(speed, lanes))

    def socket(self, number: int | str, host: str | None = None) -> str:
        """Adds a socket (or what else has memory of its own): cpu<number> on a host bridge root<number>, whose name it
        returns."""
        root = self.node(f"root{number}", Kind.SWITCH, host)
        cpu = self.node(f"cpu{number}", Kind.HOST, host)
        self.link(cpu, root, MEMORY.bandwidth, MEMORY.name)
        return root

    def join_sockets(self, roots: list[str], kind: LinkType, rate: float | None = None) -> None:
        """Joins host bridges: two by a link, more by way of one switch, to which each has a link."""
        if len(roots) == 2:
            self.links_of(roots[0], roots[1], 1, kind, rate)
        elif len(roots) > 2:
            middle = self.node("sockets", Kind.SWITCH)
            for root in roots:
                self.links_of(root, middle, 1, kind, rate)

    def nv_switch(self, devices: list[str], kind: str, count: int) -> None:
        """Joins `devices` by an NVSwitch, to which each has `count` links of the type `kind`."""
        self.node("nvswitch", Kind.SWITCH)
        for device in devices:
            self.links_of(device, "nvswitch", count, LINK_TYPES[kind])

    def build(self, name: str) -> Topology:
        """The topology. Raises TopologyError."""
        return Topology(name, tuple(self.nodes), tuple(self.links))
