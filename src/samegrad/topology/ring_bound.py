"""What no rings together can carry, however they are laid."""

from __future__ import annotations

from samegrad.topology.graph import Kind, Topology

__all__ = ["bound"]

_MOST_CUTS = 128


def bound(topology: Topology, *, direct: bool = False) -> float:
    """bytes/s that rings through all devices cannot exceed together; along links between devices only if `direct`.

    Each ring leaves each device once, and crosses each set of links that separates devices at least once in each
    direction. Up to 128 devices that is the narrowest cut, and for rings that are not `direct` the links by which the
    routes of a device begin; above, the narrowest of the devices' own links and of single links that separate devices.
    """
    import networkx as nx

    kinds = {node.name: node.kind for node in topology.nodes}
    graph = nx.Graph()
    for link in topology.links:
        if not direct or kinds[link.a] == kinds[link.b] == Kind.DEVICE:
            graph.add_edge(link.a, link.b, capacity=link.bandwidth)
    first, *others = topology.devices
    own = float(min(sum(data["capacity"] for data in graph[name].values()) for name in topology.devices))
    if len(topology.devices) <= _MOST_CUTS:
        if not direct:
            own = min(own, *(_outward(topology, name) for name in topology.devices))
        return min([own, *(float(nx.maximum_flow_value(graph, first, other)) for other in others)])
    below: dict[str, int] = {}
    narrowest = own
    for parent, name in reversed(list(nx.dfs_edges(graph, first))):
        below[name] = below.get(name, 0) + (kinds[name] is Kind.DEVICE)
        below[parent] = below.get(parent, 0) + below[name]
    bridges = {frozenset(pair) for pair in nx.bridges(graph)}
    for parent, name in nx.dfs_edges(graph, first):
        if 0 < below[name] < len(topology.devices) and frozenset((parent, name)) in bridges:
            narrowest = min(narrowest, float(graph[parent][name]["capacity"]))
    return narrowest


def _outward(topology: Topology, device: str) -> float:
    """bytes/s of the links by which the routes from `device` to other devices begin."""
    routes = (topology.route(device, other) for other in topology.devices if other != device)
    return float(sum(topology.capacities[link] for link in {route[0] for route in routes}))
