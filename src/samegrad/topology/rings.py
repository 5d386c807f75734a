"""Rings through all devices, packed into the links so that together they carry as much as possible.

Where the direct links between devices have a circuit through all of them, rings go along these only, and what one uses
of a link is a number of its parallel lanes. Up to 8 devices, all circuits are enumerated and an integer program chooses
among them: no whole numbers of lanes carry more. For more devices, circuits are taken out of what is left, widest
first, as long as one is found.

Elsewhere rings go by way of switches and network cards. Up to 8 devices all orders are tried; for more, host after
host, entered at each of its devices in turn.

`RingPacking.bound` is what no rings together can exceed: each has to leave each device, and to cross whatever
separates devices in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from samegrad.topology.graph import Topology
from samegrad.topology.ring_bound import bound
from samegrad.topology.ring_orders import Order, all_orders, carried, circuits, find_circuit, rotated_orders, uses
from samegrad.topology.ring_program import pack

__all__ = ["Ring", "RingPacking", "pack_rings", "ring_order"]

_MOST_ENUMERATED = 8
_MOST_ROTATED = 2048
_PARTS = 8  # lanes into which the narrowest link is cut, where links are no multiples of each other
_ENOUGH = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class Ring:
    """A directed ring: the ranks in their order, and the bytes/s that it carries."""

    order: tuple[int, ...]
    bandwidth: float


@dataclass(frozen=True, slots=True)
class RingPacking:
    """Rings that can run at the same time, widest first.

    bound: bytes/s that no rings together exceed.
    direct: whether they use links between devices only.
    """

    rings: tuple[Ring, ...]
    bound: float
    direct: bool

    @property
    def bandwidth(self) -> float:
        """bytes/s of all rings together."""
        return sum(ring.bandwidth for ring in self.rings)

    @property
    def one_way(self) -> tuple[Ring, ...]:
        """Of two rings that are each other's reverse and carry the same, one: what `two-way-rings` takes as its orders.
        All rings, if one of them has no such reverse."""
        kept: list[Ring] = []
        for ring in self.rings:
            if not any(_reverse(other.order) == ring.order and other.bandwidth == ring.bandwidth for other in kept):
                kept.append(ring)
        return tuple(kept) if 2 * len(kept) == len(self.rings) else self.rings

    @staticmethod
    def speeds(rings: tuple[Ring, ...]) -> tuple[int, ...]:
        """Whole numbers in proportion to what `rings` carry, as `samegrad.schedules.Options` takes them."""
        least = min(ring.bandwidth for ring in rings)
        ratios = [ring.bandwidth / least for ring in rings]
        scale = next((s for s in range(1, 13) if all(abs(r * s - round(r * s)) < 1e-6 * s for r in ratios)), 12)
        return tuple(max(1, round(ratio * scale)) for ratio in ratios)


def pack_rings(topology: Topology) -> RingPacking:
    """The rings with the largest bandwidth in all, as far as said above. None if there are fewer than 2 devices.

    Raises TopologyError if some devices have no route to each other and no circuit of links.
    """
    devices = len(topology.devices)
    if devices < 2:
        return RingPacking((), 0.0, False)
    lanes, rate = _lanes(topology)
    if devices == 2 and lanes:
        return RingPacking((Ring((0, 1), rate * lanes[0, 1]),), rate * lanes[0, 1], True)
    counts = _direct(lanes, devices)
    if counts:
        rings = [Ring(order, rate * count) for order, count in counts.items()]
        return RingPacking(_widest_first(rings), bound(topology, direct=True), True)
    return RingPacking(_widest_first(_routed(topology)), bound(topology), False)


def ring_order(topology: Topology) -> tuple[int, ...]:
    """The order in which one ring carries most: that of the ranks, unless another is better; see `pack_rings`."""
    devices = len(topology.devices)
    ranks = tuple(range(devices))
    if devices <= 3:
        return ranks
    orders = [ranks]
    if devices <= _MOST_ENUMERATED:
        orders += all_orders(devices)
    else:
        lanes, _ = _lanes(topology)
        found = find_circuit(lanes, devices) if lanes else None
        orders += [found] if found else []
        orders += rotated_orders(topology)[:1]
    return max(_candidates(topology, orders), key=lambda pair: pair[1])[0]


def _lanes(topology: Topology) -> tuple[dict[tuple[int, int], int], float]:
    """Parallel lanes between devices, in both directions, and the bytes/s of one."""
    links = [(a, b, topology.links[number]) for a, b, number in topology.device_links()]
    if not links:
        return {}, 0.0
    rates = {link.bandwidth / link.count for _, _, link in links}
    rate = min(rates)
    if max(rates) > rate * (1 + 1e-9):
        rate = min(link.bandwidth for _, _, link in links) / _PARTS
    lanes: dict[tuple[int, int], int] = {}
    for a, b, link in links:
        lanes[a, b] = lanes[b, a] = int(link.bandwidth / rate * (1 + 1e-9))
    return lanes, rate


def _direct(lanes: Mapping[tuple[int, int], int], devices: int) -> dict[Order, int]:
    """Lanes of each directed ring along direct links; none if there is no circuit."""
    if devices > _MOST_ENUMERATED:
        return _greedy(dict(lanes), devices)
    orders = list(circuits(lanes, devices))
    if not orders:
        return {}
    edges = {pair: count for pair, count in lanes.items() if pair[0] < pair[1]}
    ways = [*orders, *map(_reverse, orders)]
    of_each = [sum(count for pair, count in lanes.items() if pair[0] == rank) for rank in range(devices)]
    most = min(of_each)
    found: dict[Order, int] = {}
    if most == max(of_each):  # rings may use up all lanes, which is quickly found out
        if most % 2 == 0:
            found = _both_ways(_chosen(orders, edges, _edges, fill=True))
        else:
            found = _chosen(ways, lanes, _hops, fill=True)
    if not found:
        found = _both_ways(_chosen(orders, edges, _edges))
        if sum(found.values()) < most:  # rings in one direction only may use what is left
            each = _chosen(ways, lanes, _hops)
            found = each if sum(each.values()) > sum(found.values()) else found
    return found


def _chosen(
    orders: list[Order],
    lanes: Mapping[tuple[int, int], int],
    taken: Callable[[Order], list[tuple[int, int]]],
    *,
    fill: bool = False,
) -> dict[Order, int]:
    """The lanes of each ring, whose sum is largest; see `pack`."""
    counts = pack([dict.fromkeys(taken(order), 1) for order in orders], lanes, fill=fill)
    return {order: int(count) for order, count in zip(orders, counts, strict=True) if count}


def _both_ways(found: dict[Order, int]) -> dict[Order, int]:
    return found | {_reverse(order): count for order, count in found.items()}


def _greedy(left: dict[tuple[int, int], int], devices: int) -> dict[Order, int]:
    found: dict[Order, int] = {}
    while left and (order := find_circuit(left, devices)):
        count = min(left[hop] for hop in _hops(order))
        for a, b in _hops(order):
            left[a, b] -= count
            left[b, a] -= count
        found[order] = found.get(order, 0) + count
        found[_reverse(order)] = found[order]
    return found


def _routed(topology: Topology) -> list[Ring]:
    """Rings by way of switches: the best one, unless several carry more."""
    devices = len(topology.devices)
    ranks = tuple(range(devices))
    orders = [ranks]
    if devices <= _MOST_ENUMERATED:
        orders += all_orders(devices)
    elif devices <= _MOST_ROTATED:
        orders += rotated_orders(topology)
    rated = _candidates(topology, orders)
    order, best = max(rated, key=lambda pair: pair[1])
    if best >= bound(topology) * _ENOUGH or len(rated) == 1:
        return [Ring(order, best)]
    used = [uses(topology, each) for each, _ in rated]
    limits: dict[Any, float] = {link: float(topology.capacities[link]) / best for each in used for link in each}
    shares = pack(used, limits, whole=False)
    if sum(shares) * _ENOUGH <= 1:
        return [Ring(order, best)]
    return [Ring(each, best * share) for (each, _), share in zip(rated, shares, strict=True) if share]


def _candidates(topology: Topology, orders: list[Order]) -> list[tuple[Order, float]]:
    """Each order that has routes, once, with what it carries. Raises TopologyError if none has."""
    from samegrad.errors import TopologyError

    rated, problem = [], None
    for order in dict.fromkeys(orders):
        try:
            rated.append((order, carried(topology, uses(topology, order))))
        except TopologyError as error:
            problem = problem or error
    if problem and not rated:
        raise problem
    return rated


def _hops(order: Order) -> list[tuple[int, int]]:
    return list(zip(order, [*order[1:], order[0]], strict=True))


def _edges(order: Order) -> list[tuple[int, int]]:
    return [(min(hop), max(hop)) for hop in _hops(order)]


def _reverse(order: Order) -> Order:
    return (order[0], *order[:0:-1])


def _widest_first(rings: list[Ring]) -> tuple[Ring, ...]:
    return tuple(sorted(rings, key=lambda ring: (-ring.bandwidth, ring.order)))
