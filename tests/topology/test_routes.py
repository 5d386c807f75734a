"""Routes: the widest way, then the shortest, the same in both directions; against all ways, tried one by one."""

from __future__ import annotations

import random
from itertools import pairwise, permutations

import pytest

from samegrad.errors import TopologyError
from samegrad.topology import Kind, Link, Node, Topology


def topology(nodes: str, *links: tuple[str, str, float] | tuple[str, str, float, float]) -> Topology:
    """Nodes by their first letters: d devices, h hosts, s switches, n network cards."""
    kinds = {"d": Kind.DEVICE, "h": Kind.HOST, "s": Kind.SWITCH, "n": Kind.NIC}
    made = tuple(Node(name, kinds[name[0]]) for name in nodes.split())
    return Topology("t", made, tuple(Link(*link) for link in links))


def names(made: Topology, a: str, b: str) -> str:
    links = [made.link_name(number).split(" -> ") for number in made.route(a, b)]
    assert all(first[1] == second[0] for first, second in pairwise(links))
    return " ".join([links[0][0], *(link[1] for link in links)])


def test_the_widest_way_is_taken_even_if_it_is_longer() -> None:
    made = topology("d0 d1 s0 s1", ("d0", "d1", 1), ("d0", "s0", 2), ("s0", "s1", 2), ("s1", "d1", 2))
    assert names(made, "d0", "d1") == "d0 s0 s1 d1"


def test_of_equally_wide_ways_the_shortest_then_the_quickest() -> None:
    made = topology("d0 d1 s0", ("d0", "d1", 2, 1.0), ("d0", "s0", 2), ("s0", "d1", 3))
    assert names(made, "d0", "d1") == "d0 d1"
    made = topology("d0 d1 s0 s1", ("d0", "s0", 2, 1e-6), ("s0", "d1", 2), ("d0", "s1", 2), ("s1", "d1", 2))
    assert names(made, "d0", "d1") == "d0 s1 d1"


def test_ties_do_not_depend_on_the_order_of_the_links() -> None:
    links = [(f"s{number}", end, 1.0) for number in range(4) for end in ("d0", "d1")]
    found = set()
    for seed in range(5):
        random.Random(seed).shuffle(links)
        made = topology("d0 d1 s0 s1 s2 s3", *links)
        found |= {names(made, "d0", "d1"), " ".join(reversed(names(made, "d1", "d0").split()))}
    assert len(found) == 1


def test_devices_share_out_what_is_equally_near() -> None:
    """Two hosts of two devices and two cards each, on a switch."""
    links = [("s0", "n0"), ("s0", "n1"), ("s1", "n2"), ("s1", "n3"), *((f"n{card}", "s2") for card in range(4))]
    links += [("d0", "s0"), ("d1", "s0"), ("d2", "s1"), ("d3", "s1")]
    made = topology("s2 d0 d1 d2 d3 s0 s1 n0 n1 n2 n3", *[(*link, 1.0) for link in links])
    assert names(made, "d0", "d2") == "d0 s0 n0 s2 n2 s1 d2"
    assert names(made, "d1", "d3") == "d1 s0 n1 s2 n3 s1 d3"
    assert names(made, "d3", "d0") == "d3 s1 n3 s2 n0 s0 d0"


def test_devices_and_hosts_do_not_forward() -> None:
    chain = topology("d0 d1 d2", ("d0", "d1", 1), ("d1", "d2", 1))
    with pytest.raises(TopologyError, match="t: no route from d0 to d2: devices and hosts do not forward"):
        chain.route("d0", "d2")
    around = topology("d0 h0 d1 s0", ("d0", "h0", 9), ("h0", "d1", 9), ("d0", "s0", 1), ("s0", "d1", 1))
    assert names(around, "d0", "d1") == "d0 s0 d1"
    ring = topology("d0 d1 d2 d3", ("d0", "d1", 1), ("d1", "d2", 1), ("d2", "d3", 1), ("d3", "d0", 1))
    with pytest.raises(TopologyError, match="no route from d0 to d2"):
        ring.route("d0", "d2")


def test_a_node_that_no_link_joins_has_no_route() -> None:
    made = topology("d0 h0", *[])
    with pytest.raises(TopologyError, match="no route from d0 to h0"):
        made.route("d0", "h0")
    assert made.route("d0", "d0") == ()


def test_against_all_ways() -> None:
    """On small random graphs without cut points, so that the whole route is one part."""
    rng = random.Random(4)
    compared = 0
    for _ in range(150):
        nodes = ["d0", "d1", "d2", "s0", "s1", "s2"]
        links = {
            (a, b): (float(rng.choice([1, 2, 4])), rng.choice([0.0, 1e-6]))
            for number, a in enumerate(nodes)
            for b in nodes[number + 1 :]
            if rng.random() < 0.7
        }
        try:
            made = topology(" ".join(nodes), *[(*ends, *figures) for ends, figures in links.items()])
        except TopologyError:
            continue
        if len(made._router._blocks) > 1:
            continue
        ways = [("d0", *middle, "d1") for count in range(4) for middle in permutations(["s0", "s1", "s2"], count)]
        figures = {**links, **{(b, a): values for (a, b), values in links.items()}}
        possible = [way for way in ways if all(step in figures for step in pairwise(way))]
        if not possible:
            continue
        best = min(_merit([figures[step] for step in pairwise(way)]) for way in possible)
        taken = names(made, "d0", "d1").split()
        assert _merit([figures[step] for step in pairwise(taken)]) == best
        compared += 1
    assert compared > 50


def _merit(figures: list[tuple[float, float]]) -> tuple[float, int, float]:
    return -min(width for width, _ in figures), len(figures), sum(latency for _, latency in figures)
