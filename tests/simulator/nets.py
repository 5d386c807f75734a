"""Topologies for tests."""

from __future__ import annotations

import random

from samegrad.topology import Kind, Link, Node, Topology

__all__ = ["cube_mesh_rings", "random_topology", "star"]

cube_mesh_rings = ((0, 3, 2, 1, 5, 6, 7, 4), (0, 1, 3, 7, 5, 4, 6, 2))
"""Two rings of `dgx-1v`: the first one over links of double bandwidth, the second one over single ones."""


def star(
    devices: int,
    hosts: int = 0,
    *,
    rate: float = 1e9,
    latency: float = 0.0,
    per_message: float = 0.0,
    add_rate: float | None = None,
) -> Topology:
    """Devices d0, d1, ... and hosts h0, h1, ... on one switch."""
    names = [f"d{number}" for number in range(devices)] + [f"h{number}" for number in range(hosts)]
    nodes = [Node(name, Kind.DEVICE if name[0] == "d" else Kind.HOST, add_rate=add_rate) for name in names]
    links = [Link(name, "switch", rate, latency, per_message) for name in names]
    return Topology("star", (*nodes, Node("switch", Kind.SWITCH)), tuple(links))


def random_topology(chance: random.Random, devices: int) -> Topology:
    """Some switches in a tree, devices and one host anywhere on them, perhaps links between devices; rates, latencies
    and costs of messages that differ, or do not."""
    switches = chance.randint(1, 3)
    links: list[Link] = []

    def join(a: str, b: str) -> None:
        rate = chance.choice([1e9, 2e9, chance.uniform(0.5e9, 4e9)])
        links.append(Link(a, b, rate, chance.choice([0.0, 0.0, 1e-6, 2.5e-6]), chance.choice([0.0, 0.0, 1e-6])))

    nodes = [Node(f"s{number}", Kind.SWITCH) for number in range(switches)]
    for number in range(1, switches):
        join(f"s{number}", f"s{chance.randrange(number)}")
    add_rate = chance.choice([None, 1e9, 3e9])
    for name in [*(f"d{number}" for number in range(devices)), "h0"]:
        kind = Kind.DEVICE if name[0] == "d" else Kind.HOST
        nodes.append(Node(name, kind, add_rate=add_rate if chance.random() < 0.7 else None))
        join(name, f"s{chance.randrange(switches)}")
    pairs = {tuple(sorted(chance.sample(range(devices), 2))) for _ in range(chance.randint(0, 2)) if devices > 1}
    for a, b in sorted(pairs):
        join(f"d{a}", f"d{b}")
    return Topology("random", tuple(nodes), tuple(links))
