"""Hosts with several devices, as they are sold: what is joined to what, and how fast.

Bandwidths are those of `link_types` unless it says otherwise. Network cards stand at their place, joined to no network.
"""

from __future__ import annotations

from samegrad.topology.builder import Builder
from samegrad.topology.graph import Kind, Topology
from samegrad.topology.link_types import LINK_TYPES

__all__ = [
    "PCIE_3_TEXTBOOK",
    "dgx_1v",
    "dgx_2",
    "dgx_a100",
    "dgx_h100",
    "g4dn_12xlarge",
    "nvl72",
    "p2_16xlarge",
    "pcie_switch",
    "two_socket_pcie",
]

PCIE_3_TEXTBOOK = 16e9
"""bytes/s in each direction of 16 lanes of PCIe 3.0, as textbooks have it: 8 GT/s on each lane, without overheads."""

_CUBE_MESH_DOUBLE = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
_CUBE_MESH_SINGLE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))


def pcie_switch(devices: int, rate: float = PCIE_3_TEXTBOOK) -> Topology:
    """`devices` and the host's memory, each joined to one PCIe switch at `rate` bytes/s in each direction."""
    made = Builder()
    ends = [*_devices(made, devices), made.node("cpu0", Kind.HOST)]
    made.node("plx0", Kind.SWITCH)
    for end in ends:
        made.link(end, "plx0", rate, "PCIe 3.0 x16")
    return made.build(f"pcie-switch-{devices}")


def two_socket_pcie(devices: int) -> Topology:
    """`devices` on the host bridges of two sockets, the first half on the first; PCIe 3.0, UPI between the sockets."""
    made = Builder()
    names = _devices(made, devices)
    roots = _two_sockets(made, "UPI")
    for number, name in enumerate(names):
        made.pcie(name, roots[0 if number < (devices + 1) // 2 else 1])
    return made.build(f"two-socket-pcie-{devices}")


def dgx_1v() -> Topology:
    """DGX-1 with 8 V100, the same as p3.16xlarge: 6 NVLinks a device, in a hybrid cube mesh.

    Pairs of devices share a PCIe switch with a network card, two switches a socket. Source: NVIDIA DGX-1 With Tesla
    V100 System Architecture (WP-08437-002); pairs are numbered as `nvidia-smi topo -m` numbers them there.
    """
    made = Builder()
    names = _devices(made, 8)
    for count, pairs in ((2, _CUBE_MESH_DOUBLE), (1, _CUBE_MESH_SINGLE)):
        for a, b in pairs:
            made.links_of(names[a], names[b], count, LINK_TYPES["NVLink 2"])
    roots = _two_sockets(made, "QPI")
    for number in range(4):
        _switch(made, number, roots[number // 2], names[2 * number : 2 * number + 2], generation=3)
    return made.build("dgx-1v")


def dgx_2() -> Topology:
    """DGX-2: 16 V100 whose 6 NVLinks lead to NVSwitches, through which every pair has the full rate.

    Source: NVIDIA DGX-2 user guide; two devices and a network card on each PCIe switch.
    """
    made = Builder()
    names = _devices(made, 16)
    made.nv_switch(names, "NVLink 2", 6)
    roots = _two_sockets(made, "UPI")
    for number in range(8):
        _switch(made, number, roots[number // 4], names[2 * number : 2 * number + 2], generation=3)
    return made.build("dgx-2")


def dgx_a100() -> Topology:
    """DGX A100: 8 A100 whose 12 NVLinks lead to NVSwitches; PCIe 4.0, two devices and two network cards on a switch.

    Source: NVIDIA DGX A100 System Architecture (WP-10083-001).
    """
    made = Builder()
    names = _devices(made, 8)
    made.nv_switch(names, "NVLink 3", 12)
    roots = _two_sockets(made, "Infinity Fabric, Zen 2")
    for number in range(4):
        _switch(made, number, roots[number // 2], names[2 * number : 2 * number + 2], generation=4, cards=2)
    return made.build("dgx-a100")


def dgx_h100() -> Topology:
    """DGX H100: 8 H100 whose 18 NVLinks lead to NVSwitches; PCIe 5.0, a network card beside each device.

    Source: NVIDIA DGX H100/H200 user guide.
    """
    made = Builder()
    names = _devices(made, 8)
    made.nv_switch(names, "NVLink 4", 18)
    roots = _two_sockets(made, "UPI 2.0")
    for number in range(8):
        _switch(made, number, roots[number // 4], names[number : number + 1], generation=5)
    return made.build("dgx-h100")


def nvl72() -> Topology:
    """GB200 NVL72: 72 B200 in 18 hosts, all on one NVLink switch system with 18 NVLinks a device.

    A host has two Grace processors, each joined to two devices by NVLink-C2C (450 GB/s in each direction, shared by
    the two), and a network card for each device. Source: NVIDIA GB200 NVL72 data sheet.
    """
    made = Builder()
    names = [made.node(f"gpu{number}", Kind.DEVICE, f"host{number // 4}") for number in range(72)]
    made.node("nvswitch", Kind.SWITCH, "")
    for name in names:
        made.links_of(name, "nvswitch", 18, LINK_TYPES["NVLink 5"])
    for socket in range(36):
        host = f"host{socket // 2}"
        root = made.socket(socket, host)
        for number in (2 * socket, 2 * socket + 1):
            made.link(names[number], root, 225e9, "NVLink-C2C")
            made.pcie(made.node(f"nic{number}", Kind.NIC, host), root, generation=5)
        if socket % 2:
            made.link(f"root{socket - 1}", root, 150e9, "NVLink-C2C between processors")
    return made.build("nvl72")


def p2_16xlarge() -> Topology:
    """p2.16xlarge: 16 dies of 8 K80, PCIe 3.0: two dies on the switch of a card, four cards on the switches of a
    socket. Source: `nvidia-smi topo -m` there, as published; QPI between the sockets."""
    made = Builder()
    names = _devices(made, 16)
    roots = _two_sockets(made, "QPI")
    for socket in range(2):
        above = made.node(f"pex{socket}", Kind.SWITCH)
        made.pcie(above, roots[socket])
        for card in range(4 * socket, 4 * socket + 4):
            _switch(made, card, above, names[2 * card : 2 * card + 2], generation=3, cards=0)
    _card(made, 0, roots[0], 3)
    return made.build("p2-16xlarge")


def g4dn_12xlarge() -> Topology:
    """g4dn.12xlarge: 4 T4 on the host bridge, with 8 lanes of PCIe 3.0 each, and a network card."""
    made = Builder()
    names = _devices(made, 4)
    root = made.socket(0)
    for name in names:
        made.pcie(name, root, lanes=8)
    _card(made, 0, root, 3)
    return made.build("g4dn-12xlarge")


def _devices(made: Builder, count: int) -> list[str]:
    return [made.node(f"gpu{number}", Kind.DEVICE) for number in range(count)]


def _two_sockets(made: Builder, kind: str) -> list[str]:
    roots = [made.socket(0), made.socket(1)]
    made.join_sockets(roots, LINK_TYPES[kind])
    return roots


def _switch(made: Builder, number: int, above: str, names: list[str], generation: int, cards: int = 1) -> None:
    """A PCIe switch with devices and network cards on it, joined to what is above it."""
    switch = made.node(f"plx{number}", Kind.SWITCH)
    made.pcie(switch, above, generation)
    for name in names:
        made.pcie(name, switch, generation)
    for card in range(number * cards, (number + 1) * cards):
        _card(made, card, switch, generation)


def _card(made: Builder, number: int, above: str, generation: int) -> None:
    made.pcie(made.node(f"nic{number}", Kind.NIC), above, generation)
