"""What must be true of a topology as a whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from samegrad.errors import TopologyError
from samegrad.nearest import meant

if TYPE_CHECKING:
    from samegrad.topology.graph import Topology

__all__ = ["MOST_NODES", "check", "unknown"]

MOST_NODES = 2**18
"""Nodes in a topology. More is taken for a mistake."""


def check(topology: Topology) -> None:
    """Raises TopologyError for names that are not unique, links to unknown nodes, two links between the same nodes, no
    device, and devices that cannot reach each other."""
    name = topology.name
    if not name.isprintable():
        raise TopologyError(f"the name of a topology must be text that can be printed; got {name!r}")
    if len(topology.nodes) > MOST_NODES:
        raise TopologyError(f"{name}: at most {MOST_NODES} nodes; got {len(topology.nodes)}")
    names: set[str] = set()
    for node in topology.nodes:
        if node.name in names:
            raise TopologyError(f"{name}: two nodes are named {node.name!r}; names must be unique")
        names.add(node.name)
    neighbours: dict[str, list[str]] = defaultdict(list)
    pairs: dict[frozenset[str], int] = {}
    for number, link in enumerate(topology.links):
        for end in (link.a, link.b):
            if end not in names:
                raise TopologyError(f"{name}: link {link.a} - {link.b} joins an unknown node {unknown(end, names)}")
        earlier = pairs.setdefault(frozenset((link.a, link.b)), number)
        if earlier != number:
            raise TopologyError(
                f"{name}: links {earlier} and {number} both join {link.a} and {link.b}; expected one link, with the "
                "sum of the bandwidths and the number of parallel links as its count"
            )
        neighbours[link.a].append(link.b)
        neighbours[link.b].append(link.a)
    if not topology.devices:
        raise TopologyError(f"{name}: there is no device among its {len(topology.nodes)} nodes; expected at least one")
    first = topology.devices[0]
    reached = _reached(first, neighbours)
    for device in topology.devices:
        if device not in reached:
            raise TopologyError(
                f"{name}: it is not connected: no links lead from {first} to {device}; add the link that is missing"
            )


def unknown(name: str, known: Iterable[str]) -> str:
    """`name` in quotes, with the nearest of the `known` names if one is near, in capital or small letters."""
    return f"{name!r}{meant(name, known)}"


def _reached(start: str, neighbours: dict[str, list[str]]) -> set[str]:
    reached, open_ends = {start}, [start]
    while open_ends:
        for neighbour in neighbours[open_ends.pop()]:
            if neighbour not in reached:
                reached.add(neighbour)
                open_ends.append(neighbour)
    return reached
