"""Which way data takes from one node to another.

Only switches and network cards forward; devices and hosts are where routes start and end. Where all ways between two
nodes pass the same points (the switch of a network, the one network card of a host), the route is put together from
the parts between these points; of each part it is

- the widest way, whose narrowest link has the most bandwidth: a large message takes the least time on it;
- of several the one with the fewest links, then with the least latency;
- of several still, in the order of their names, the one that the rank of the end on this side picks, of both ends if
  nothing lies between: so devices share out network cards that are equally near. It is the same in both directions.

Parts are remembered, so that routes in a cluster of thousands of hosts, which differ in their ends only, cost little.
"""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import networkx as nx

from samegrad.errors import TopologyError

if TYPE_CHECKING:
    from samegrad.topology.graph import Link, Topology

__all__ = ["Router"]

_MOST_TIES = 64

Ways = tuple[tuple[int, ...], ...]


class Router:
    """The routes in one topology."""

    def __init__(self, topology: Topology) -> None:
        from samegrad.topology.graph import Kind

        self._name = topology.name
        self._graph = nx.Graph()
        self._graph.add_nodes_from(node.name for node in topology.nodes)
        self._ordinal = {name: at for names in (topology.devices, topology.hosts) for at, name in enumerate(names)}
        for number, link in enumerate(topology.links):
            self._graph.add_edge(
                link.a, link.b, number=number, start=link.a, bandwidth=link.bandwidth, weight=_weight(link)
            )
        self._forwards = {node.name for node in topology.nodes if node.kind in (Kind.SWITCH, Kind.NIC)}
        # Blocks (parts without a point that all ways pass) and the points between them form a forest: each node but a
        # root has a block above it, and above that the point by which all ways leave the block.
        self._blocks = [frozenset(block) for block in nx.biconnected_components(self._graph)]
        self._above: dict[str, tuple[int, str]] = {}
        self._depth: dict[str, int] = {}
        self._plant()
        self._climbs: dict[str, tuple[Ways, Ways]] = {}
        self._crossings: dict[tuple[str, str], Ways] = {}
        self._levels: dict[int, list[Any]] = {}

    def route(self, a: str, b: str) -> tuple[int, ...]:
        """The directed links from `a` to `b`, () if they are the same. Raises TopologyError if there is no way."""
        try:
            return self._route(a, b)
        except _NoWay:
            raise TopologyError(
                f"{self._name}: no route from {a} to {b}: devices and hosts do not forward, and no links by way of "
                "switches and network cards join them; add links, or use an algorithm whose neighbours are joined"
            ) from None

    def _route(self, a: str, b: str) -> tuple[int, ...]:
        depth, above = self._depth, self._above
        start, stop = a, b
        first, last = self._ordinal.get(a, 0), self._ordinal.get(b, 0)
        there: tuple[int, ...] = ()
        back: tuple[int, ...] = ()
        while a != b:
            if a in above and b in above and above[a][0] == above[b][0]:
                ways = self._cross(a, b)
                return there + ways[(first + last) % len(ways)] + back
            rising = a if depth[a] >= depth[b] else b
            if rising not in above:
                raise _NoWay
            point = above[rising][1]
            if point not in self._forwards and point != start and point != stop:
                raise _NoWay
            up, down = self._climb(rising)
            if rising == a:
                a, there = point, there + up[first % len(up)]
            else:
                b, back = point, down[last % len(down)] + back
        return there + back

    def _plant(self) -> None:
        homes: dict[str, list[int]] = {name: [] for name in self._graph}
        for number, block in enumerate(self._blocks):
            for name in block:
                homes[name].append(number)
        for root in self._graph:
            if root in self._depth:
                continue
            self._depth[root] = 0
            open_ends = [root]
            while open_ends:
                point = open_ends.pop()
                for number in homes[point]:
                    for name in self._blocks[number]:
                        if name not in self._depth:
                            self._above[name], self._depth[name] = (number, point), self._depth[point] + 1
                            open_ends.append(name)

    def _climb(self, name: str) -> tuple[Ways, Ways]:
        """From `name` to the point above it, and the same ways down."""
        if name not in self._climbs:
            block, point = self._above[name]
            up = self._search(name, point, block)
            self._climbs[name] = up, _reverse(up)
        return self._climbs[name]

    def _cross(self, a: str, b: str) -> Ways:
        """From `a` to `b`, which have the same block above them."""
        if (a, b) not in self._crossings:
            ways = self._search(a, b, self._above[a][0])
            self._crossings[a, b], self._crossings[b, a] = ways, _reverse(ways)
        return self._crossings[a, b]

    def _search(self, start: str, stop: str, block: int) -> Ways:
        """All ways that are equally good, in the order of the names from the lesser end on. Raises _NoWay."""
        if len(self._blocks[block]) == 2:
            return ((self._directed(start, stop),),)
        first, last = sorted((start, stop))
        for wide in self._widths(block):
            usable = nx.subgraph_view(wide, filter_node=lambda name: name in self._forwards or name in (start, stop))
            if nx.has_path(usable, first, last):
                paths = sorted(islice(nx.all_shortest_paths(usable, first, last, weight="weight"), _MOST_TIES))
                ways = tuple(tuple(self._directed(x, y) for x, y in pairwise(path)) for path in paths)
                return ways if first == start else _reverse(ways)
        raise _NoWay

    def _widths(self, block: int) -> list[Any]:
        """The block, without what is narrower than each of its bandwidths, widest first."""
        if block not in self._levels:
            inside = self._graph.subgraph(self._blocks[block])
            edges = [(*sorted((x, y)), data) for x, y, data in inside.edges(data=True)]
            edges.sort(key=lambda edge: edge[:2])
            levels = []
            for width in sorted({data["bandwidth"] for _, _, data in edges}, reverse=True):
                level = nx.Graph()
                level.add_nodes_from(inside)
                level.add_edges_from((x, y, data) for x, y, data in edges if data["bandwidth"] >= width)
                levels.append(level)
            self._levels[block] = levels
        return self._levels[block]

    def _directed(self, start: str, stop: str) -> int:
        data = self._graph[start][stop]
        number: int = data["number"]
        return 2 * number + int(data["start"] != start)


class _NoWay(Exception):
    pass


def _reverse(ways: Ways) -> Ways:
    return tuple(tuple(directed ^ 1 for directed in reversed(way)) for way in ways)


def _weight(link: Link) -> int:
    """A whole number whose sums compare hops first, then latency in femtoseconds."""
    return (1 << 120) + round(min(link.latency, 1e9) * 1e15)
