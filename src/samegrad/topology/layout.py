"""Where the nodes of a topology stand in its picture.

Devices stand in a row, host by host. Above them, in each host, are its switches, by how far they are from the devices,
then the host bridges, then processors and network cards; above the hosts the switches of the network. What joins
devices only, as an NVSwitch, stands below them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from samegrad.topology.graph import Kind, Topology

__all__ = ["Layout", "lay_out"]

_HOST_GAP = 1.0
_FABRIC_ROW = -2.0


@dataclass(frozen=True, slots=True)
class Layout:
    """places: of each node, to the right and up. hosts: of each host its left, right and upper edge."""

    places: dict[str, tuple[float, float]]
    hosts: dict[str, tuple[float, float, float]]


def lay_out(topology: Topology) -> Layout:
    """A place for each node."""
    near: dict[str, list[str]] = {node.name: [] for node in topology.nodes}
    for link in topology.links:
        near[link.a].append(link.b)
        near[link.b].append(link.a)
    kinds = {node.name: node.kind for node in topology.nodes}
    hosts = {node.name: node.host for node in topology.nodes}
    fabric = {
        name
        for name, kind in kinds.items()
        if kind is Kind.SWITCH and near[name] and all(kinds[other] is Kind.DEVICE for other in near[name])
    }
    rows = _rows(topology, near, kinds, hosts, fabric)
    places: dict[str, tuple[float, float]] = {}
    edges: dict[str, tuple[float, float, float]] = {}
    at = 0.0
    for host in dict.fromkeys(node.host for node in topology.nodes if node.host):
        inside = [node.name for node in topology.nodes if node.host == host and node.name not in fabric]
        width = _place_host(inside, rows, near, at, places)
        edges[host] = (at - 0.6, at + width - 0.4, max(rows[name] for name in inside) + 0.5)
        at += width + _HOST_GAP
    loose = [node.name for node in topology.nodes if not node.host and node.name not in fabric]
    for row in sorted({rows[name] for name in loose}):
        _spread([name for name in loose if rows[name] == row], row, near, places)
    served: list[set[str]] = []
    for name in sorted(fabric):
        below = [places[other][0] for other in near[name]]
        row = sum(bool(others & set(near[name])) for others in served)  # under those of the same devices
        served.append(set(near[name]))
        widest = max(below) - min(below)
        places[name] = sum(below) / len(below), _FABRIC_ROW - 0.04 * widest - row
    return Layout(places, edges)


def _rows(
    topology: Topology,
    near: dict[str, list[str]],
    kinds: dict[str, Kind],
    hosts: dict[str, str],
    fabric: set[str],
) -> dict[str, float]:
    """How high each node stands."""
    inner = {name for name in near if kinds[name] is Kind.SWITCH and hosts[name] and name not in fabric}
    bridges = {name for name in inner if any(kinds[other] is Kind.HOST for other in near[name])}
    joints = {name for name in inner - bridges if len(bridges.intersection(near[name])) > 1}
    rows: dict[str, float] = dict.fromkeys(topology.devices, 0.0)
    cards = [name for name in near if kinds[name] is Kind.NIC]
    for start in (topology.devices, cards):  # switches by their distance from a device, or else from a network card
        waiting = deque((name, 0) for name in start)
        while waiting:
            name, distance = waiting.popleft()
            for other in near[name]:
                if other in inner and other not in rows and other not in bridges | joints:
                    rows[other] = distance + 1
                    waiting.append((other, distance + 1))
    top = max((rows[name] for name in inner & rows.keys()), default=0.0)
    rows |= dict.fromkeys(bridges, top + 1) | dict.fromkeys(joints, top + 2)
    rows |= dict.fromkeys(inner - rows.keys(), max(top, 1.0))
    for name, kind in kinds.items():
        if kind in (Kind.HOST, Kind.NIC):
            rows[name] = top + 2
    loose = [name for name in near if name not in rows and name not in fabric]
    for name in loose:
        near_cards = any(kinds[other] is not Kind.SWITCH for other in near[name])
        rows[name] = top + (4.0 if near_cards else 5.5) if cards or inner else (1.5 if near_cards else 3.0)
    return rows


def _place_host(
    inside: list[str],
    rows: dict[str, float],
    near: dict[str, list[str]],
    at: float,
    places: dict[str, tuple[float, float]],
) -> float:
    """Places the nodes of a host, from `at` to the right. Returns its width."""
    by_row: dict[float, list[str]] = {}
    for name in inside:
        by_row.setdefault(rows[name], []).append(name)
    width = max(1.0, *(len(names) * (1.0 if row == 0 else 0.9) for row, names in by_row.items()))
    start = at + (width - len(by_row.get(0.0, []))) / 2
    for number, name in enumerate(by_row.get(0.0, [])):
        places[name] = start + number, 0.0
    for row in sorted(by_row):
        if row > 0:
            _spread(by_row[row], row, near, places, at, at + width - 1)
    return width


def _spread(
    names: list[str],
    row: float,
    near: dict[str, list[str]],
    places: dict[str, tuple[float, float]],
    left: float | None = None,
    right: float | None = None,
) -> None:
    """Places a row: each node above the middle of what it is joined to and has a place, but not on another."""
    wanted: dict[str, float] = {}
    for name in names:
        below = [places[other][0] for other in near[name] if other in places]
        wanted[name] = sum(below) / len(below) if below else 0.0
    ordered = sorted(names, key=lambda name: wanted[name])
    distance = 0.9
    if left is not None and right is not None and len(names) > 1:
        distance = min(distance, (right - left) / (len(names) - 1)) or distance
    spots: list[float] = []
    for name in ordered:
        spots.append(max(wanted[name], spots[-1] + distance) if spots else wanted[name])
    drift = sum(spot - wanted[name] for spot, name in zip(spots, ordered, strict=True)) / len(spots)
    for number, (spot, name) in enumerate(zip(spots, ordered, strict=True)):
        x = spot - drift
        if left is not None and right is not None:
            x = max(min(x, right - (len(names) - 1 - number) * distance), left + number * distance)
        places[name] = x, row
