"""Orders in which a ring can visit all devices, and how much one can carry.

An order starts with rank 0. What a ring carries is the bandwidth at which all its hops run at the same time: the least,
over the directed links, of bandwidth divided by the number of hops that use the link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

from samegrad.topology.graph import Topology

__all__ = ["Order", "all_orders", "carried", "circuits", "find_circuit", "rotated_orders", "uses"]

Order = tuple[int, ...]

_MOST_STEPS = 200_000


def uses(topology: Topology, order: Sequence[int]) -> Counter[int]:
    """How many hops of the ring use each directed link. Raises TopologyError if a hop has no route."""
    devices = topology.devices
    found: Counter[int] = Counter()
    for here, there in zip(order, [*order[1:], order[0]], strict=True):
        found.update(topology.route(devices[here], devices[there]))
    return found


def carried(topology: Topology, used: Mapping[int, int]) -> float:
    """bytes/s of a ring that uses these directed links."""
    return min(topology.links[link // 2].bandwidth / count for link, count in used.items())


def all_orders(devices: int) -> Iterator[Order]:
    """Each directed ring over so many devices once: (devices - 1)! orders."""
    return ((0, *rest) for rest in permutations(range(1, devices)))


def rotated_orders(topology: Topology) -> list[Order]:
    """Host after host, in each host from another device on: so each ring enters and leaves hosts by other devices, and
    by other network cards where they have some. The first is the order of the ranks, host by host."""
    hosts: dict[str, list[int]] = {}
    kinds = {node.name: node.host for node in topology.nodes}
    for rank, name in enumerate(topology.devices):
        hosts.setdefault(kinds[name], []).append(rank)
    orders = []
    for turn in range(max(len(ranks) for ranks in hosts.values())):
        order = [rank for ranks in hosts.values() for rank in _turned(ranks, turn)]
        orders.append(tuple(_turned(order, order.index(0))))
    return list(dict.fromkeys(orders))


def circuits(lanes: Mapping[tuple[int, int], int], devices: int) -> Iterator[Order]:
    """The circuits through all devices along `lanes` (keys in both directions), each in one direction only."""
    near: dict[int, list[int]] = {rank: [] for rank in range(devices)}
    for a, b in sorted(lanes):
        near[a].append(b)

    def extend(path: list[int], seen: set[int]) -> Iterator[Order]:
        if len(path) == devices:
            if 0 in near[path[-1]] and path[1] < path[-1]:
                yield tuple(path)
            return
        for rank in near[path[-1]]:
            if rank not in seen:
                yield from extend([*path, rank], {*seen, rank})

    return extend([0], {0}) if devices > 2 else iter(())


def find_circuit(lanes: Mapping[tuple[int, int], int], devices: int) -> Order | None:
    """A circuit through all devices along what is left of `lanes`, the widest first, then to whom has fewest ways on.

    None if there is none, or none is found in 200,000 steps.
    """
    near: dict[int, dict[int, int]] = {rank: {} for rank in range(devices)}
    for (a, b), left in sorted(lanes.items()):
        if left > 0:
            near[a][b] = left

    def choices(rank: int) -> list[int]:
        open_ones = [other for other in near[rank] if not seen[other]]
        free = {other: sum(not seen[third] for third in near[other]) for other in open_ones}
        return sorted(open_ones, key=lambda other: (near[rank][other], -free[other], -other))  # the last is tried first

    seen = [False] * devices
    seen[0] = True
    path, waiting = [0], [choices(0)]
    for _ in range(_MOST_STEPS):
        if len(path) == devices and 0 in near[path[-1]]:
            return tuple(path)
        if waiting[-1]:
            rank = waiting[-1].pop()
            seen[rank] = True
            path.append(rank)
            waiting.append(choices(rank))
        else:
            waiting.pop()
            seen[path.pop()] = False
            if not path:
                return None
    return None


def _turned(ranks: Sequence[int], turn: int) -> list[int]:
    turn %= len(ranks)
    return [*ranks[turn:], *ranks[:turn]]
