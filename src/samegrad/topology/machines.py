"""Hosts with several devices, as they are sold: what is joined to what, and how fast."""

from __future__ import annotations

from samegrad.topology.graph import Kind, Link, Node, Topology

__all__ = ["PCIE_3_TEXTBOOK", "dgx_1v", "pcie_switch"]

PCIE_3_TEXTBOOK = 16e9
"""bytes/s in each direction of 16 lanes of PCIe 3.0, as textbooks have it: 8 GT/s on each lane, without overheads."""

_CUBE_MESH_DOUBLE = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
_CUBE_MESH_SINGLE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))


def pcie_switch(devices: int, rate: float = PCIE_3_TEXTBOOK) -> Topology:
    """`devices` and the host's memory, each joined to one PCIe switch at `rate` bytes/s in each direction."""
    names = [f"gpu{number}" for number in range(devices)]
    nodes = [Node(name, Kind.DEVICE, "host0") for name in names]
    nodes += [Node("cpu0", Kind.HOST, "host0"), Node("plx0", Kind.SWITCH, "host0")]
    links = [Link(name, "plx0", rate, kind="PCIe 3.0 x16") for name in [*names, "cpu0"]]
    return Topology(f"pcie-switch-{devices}", tuple(nodes), tuple(links))


def dgx_1v() -> Topology:
    """DGX-1 with 8 V100, the same as p3.16xlarge: 6 NVLinks a device, in a hybrid cube mesh.

    18 GB/s in each direction of one NVLink (25 GB/s by its specification). Pairs of devices share a PCIe switch, two
    switches a socket. Source: NVIDIA DGX-1 With Tesla V100 System Architecture (WP-08437-002), figures 4 and 5; the
    pairs are numbered as `nvidia-smi topo -m` numbers them.
    """
    devices = [f"gpu{number}" for number in range(8)]
    nodes = [Node(name, Kind.DEVICE, "host0") for name in devices]
    nodes += [Node(f"cpu{number}", Kind.HOST, "host0") for number in range(2)]
    nodes += [Node(f"root{number}", Kind.SWITCH, "host0") for number in range(2)]
    nodes += [Node(f"plx{number}", Kind.SWITCH, "host0") for number in range(4)]
    links = [
        Link(devices[a], devices[b], 18e9 * count, kind="NVLink 2", count=count)
        for count, pairs in ((2, _CUBE_MESH_DOUBLE), (1, _CUBE_MESH_SINGLE))
        for a, b in pairs
    ]
    links += [Link(devices[number], f"plx{number // 2}", 12e9, kind="PCIe 3.0 x16") for number in range(8)]
    links += [Link(f"plx{number}", f"root{number // 2}", 12e9, kind="PCIe 3.0 x16") for number in range(4)]
    links += [Link(f"cpu{number}", f"root{number}", 60e9, kind="memory") for number in range(2)]
    links.append(Link("root0", "root1", 9.6e9, kind="QPI"))
    return Topology("dgx-1v", tuple(nodes), tuple(links))
