"""Packing rings: the figures that are known, that nothing carries more than it can, and that no more was to be had."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import combinations, permutations

import pytest

from samegrad.errors import TopologyError
from samegrad.topology import Kind, Link, Node, RingPacking, Topology, pack_rings, ring_order
from samegrad.topology.ring_orders import uses
from samegrad.topology.ring_program import pack


def mesh(lanes: dict[tuple[int, int], int], rate: float = 1.0) -> Topology:
    """Devices joined to each other by so many lanes."""
    count = max(max(pair) for pair in lanes) + 1
    nodes = tuple(Node(f"d{number}", Kind.DEVICE) for number in range(count))
    return Topology("mesh", nodes, tuple(Link(f"d{a}", f"d{b}", rate * n, count=n) for (a, b), n in lanes.items()))


def check(topology: Topology, packing: RingPacking) -> None:
    """Each ring visits each device once, no directed link is used beyond its bandwidth, and the bound holds."""
    load: dict[int, float] = defaultdict(float)
    for ring in packing.rings:
        assert sorted(ring.order) == list(range(len(topology.devices)))
        assert ring.order[0] == 0
        for link, count in uses(topology, ring.order).items():
            load[link] += ring.bandwidth * count
    for link, amount in load.items():
        assert amount <= topology.capacities[link] * (1 + 1e-9), topology.link_name(link)
    assert packing.bandwidth <= packing.bound * (1 + 1e-9)


def test_the_cube_mesh_is_one_ring_of_double_and_one_of_single_bandwidth_in_each_direction() -> None:
    topology = Topology.preset("dgx-1v")
    packing = pack_rings(topology)
    check(topology, packing)
    assert [ring.bandwidth for ring in packing.rings] == [36e9, 36e9, 18e9, 18e9]
    assert packing.bandwidth == packing.bound == 6 * 18e9
    assert packing.direct
    one_way = packing.one_way
    assert packing.speeds(one_way) == (2, 1)
    assert {ring.order for ring in packing.rings} == {
        way for ring in one_way for way in (ring.order, _back(ring.order))
    }
    seconds = 2 * 7 / 8 * 160e6 / sum(ring.bandwidth for ring in one_way)
    assert (round(seconds * 1e3, 2), round(seconds / 2 * 1e3, 2)) == (5.19, 2.59)


def _back(order: tuple[int, ...]) -> tuple[int, ...]:
    return (order[0], *order[:0:-1])


@pytest.mark.parametrize("seed", range(5))
def test_however_the_devices_of_a_cube_mesh_are_numbered(seed: int) -> None:
    topology = Topology.preset("dgx-1v")
    number = list(range(8))
    random.Random(seed).shuffle(number)
    lanes = {(number[a], number[b]): topology.links[link].count for a, b, link in topology.device_links()}
    packing = pack_rings(mesh(lanes))
    assert sorted(ring.bandwidth for ring in packing.one_way) == [1, 2]


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [
        ("pcie-switch-4", 16e9),
        ("pcie-switch-2", 16e9),
        ("two-socket-pcie-4", 10e9),
        ("dgx-a100", 240e9),
        ("dgx-2", 108e9),
        ("nvl72", 18 * 40.1e9),
        ("ethernet-4x2@10Gb", 1.25e9),
        ("ib-2xdgx-a100@200Gb", 8 * 24e9),
        ("fat-tree-2x2x2@25Gb", 3.125e9),
    ],
)
def test_presets(name: str, bandwidth: float) -> None:
    topology = Topology.preset(name)
    packing = pack_rings(topology)
    check(topology, packing)
    assert packing.bandwidth == pytest.approx(bandwidth)
    assert not packing.direct


@pytest.mark.parametrize(("devices", "rings"), [(3, 2), (4, 2), (5, 4), (6, 4), (7, 6), (8, 7)])
def test_all_joined_to_all(devices: int, rings: int) -> None:
    """As many directed rings as one has neighbours; for 4 and 6 devices that is impossible (Tillson 1980)."""
    topology = mesh(dict.fromkeys(combinations(range(devices), 2), 1))
    packing = pack_rings(topology)
    check(topology, packing)
    assert packing.bandwidth == rings
    assert packing.bound == devices - 1


@pytest.mark.parametrize("seed", range(12))
def test_nothing_carries_more_than_the_packing_of_five(seed: int) -> None:
    rng = random.Random(seed)
    lanes = {pair: rng.randint(1, 3) for pair in combinations(range(5), 2) if rng.random() < 0.8}
    try:
        topology = mesh(lanes | {(0, 4): 1})
    except TopologyError:
        return
    packing = pack_rings(topology)
    check(topology, packing)
    if packing.direct:
        free = {
            pair: count for (a, b), count in (lanes | {(0, 4): 1}).items() for pair in ((a, b), (b, a)) for _ in "x"
        }
        assert packing.bandwidth == _most(list(permutations(range(1, 5))), dict(free))


def _most(rest: list[tuple[int, ...]], free: dict[tuple[int, int], int]) -> int:
    """By trying everything: each order, as often as it may go, then those behind it."""
    for at, order in enumerate(rest):
        hops = list(zip((0, *order), (*order, 0), strict=True))
        if all(free.get(hop, 0) > 0 for hop in hops):
            without = _most(rest[at + 1 :], free)
            for hop in hops:
                free[hop] -= 1
            with_it = 1 + _most(rest[at:], free)
            for hop in hops:
                free[hop] += 1
            return max(without, with_it)
    return 0


def test_lanes_of_unequal_rates() -> None:
    nodes = tuple(Node(f"d{number}", Kind.DEVICE) for number in range(3))
    links = (Link("d0", "d1", 1.0), Link("d1", "d2", 1.6), Link("d2", "d0", 1.0))
    topology = Topology("t", nodes, links)
    packing = pack_rings(topology)
    check(topology, packing)
    assert packing.bandwidth == pytest.approx(2.0)


def test_more_than_eight_devices_on_a_torus() -> None:
    lanes = {}
    for x in range(4):
        for y in range(4):
            lanes[4 * x + y, 4 * x + (y + 1) % 4] = 1
            lanes[4 * x + y, 4 * ((x + 1) % 4) + y] = 1
    topology = mesh(lanes)
    packing = pack_rings(topology)
    check(topology, packing)
    assert packing.direct
    assert packing.bandwidth >= packing.bound / 2


def test_a_ring_finds_an_order_where_ranks_have_no_links() -> None:
    lanes = {(0, 2): 1, (2, 1): 1, (1, 3): 1, (3, 0): 1}
    assert ring_order(mesh(lanes)) in ((0, 2, 1, 3), (0, 3, 1, 2))
    assert ring_order(Topology.preset("pcie-switch-4")) == (0, 1, 2, 3)
    ten = {(a, (a + 3) % 10): 1 for a in range(10)}
    assert ring_order(mesh(ten)) in ((0, 3, 6, 9, 2, 5, 8, 1, 4, 7), (0, 7, 4, 1, 8, 5, 2, 9, 6, 3))


def test_order_of_a_ring_in_the_cube_mesh() -> None:
    topology = Topology.preset("dgx-1v")
    order = ring_order(topology)
    assert min(topology.capacities[link] / count for link, count in uses(topology, order).items()) == 36e9


def test_one_and_two_devices() -> None:
    assert pack_rings(Topology.preset("pcie-switch-1")).rings == ()
    (ring,) = pack_rings(mesh({(0, 1): 4}, 2.0)).rings
    assert (ring.order, ring.bandwidth) == ((0, 1), 8.0)


def test_no_circuit_and_no_routes() -> None:
    with pytest.raises(TopologyError, match="no route from"):
        pack_rings(mesh({(0, 1): 1, (1, 2): 1, (2, 3): 1}))


def test_an_impossible_filling_uses_nothing() -> None:
    assert pack([{"a": 1, "b": 1}], {"a": 1, "b": 2}, fill=True) == [0.0]
    assert pack([{"a": 1, "b": 1}], {"a": 1, "b": 2}) == [1.0]
