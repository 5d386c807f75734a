"""Which strategies are tried."""

from __future__ import annotations

import pytest

from samegrad.planner.candidates import candidates, hosts_of, label
from samegrad.schedules import ALGORITHMS, verify
from samegrad.shards import shares
from samegrad.strategy import Strategy
from samegrad.topology import Topology

PRESETS = ["pcie-switch-4", "dgx-1v", "ethernet-3x3@25Gb", "two-socket-pcie-5"]


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("exact", [True, False])
def test_all_can_be_built_and_are_what_the_recipe_allows(name: str, exact: bool) -> None:
    topology = Topology.preset(name)
    for devices in range(1, len(topology.devices) + 1):
        found = candidates(topology, devices, exact)
        assert len(set(found)) == len(found)
        assert len({label(each) for each in found}) == len(found)
        for strategy in found:
            strategy.check(exact)
            verify(strategy.schedule(shares(12, devices), 12), must_follow_tree=exact)
            assert Strategy.from_json(strategy.to_json()) == strategy


def test_every_algorithm_is_tried() -> None:
    topology = Topology.preset("dgx-1v")
    known = {name for name, each in ALGORITHMS.items() if each.follows_tree}
    assert {each.algorithm for each in candidates(topology, 8, exact=True)} == known
    assert {each.algorithm for each in candidates(topology, 8, exact=False)} == set(ALGORITHMS)


def test_groups_are_the_hosts_of_the_devices_that_are_used() -> None:
    topology = Topology.preset("ethernet-3x3@25Gb")
    assert hosts_of(topology, 8) == [3, 3, 2]
    groups = {each.groups for each in candidates(topology, 8, exact=True) if each.algorithm == "hierarchical"}
    assert groups == {((3, 3, 2),)}
    assert not [each for each in candidates(topology, 2, exact=True) if each.algorithm == "hierarchical"]


def test_rings_are_those_of_the_devices_that_are_used() -> None:
    found = candidates(Topology.preset("dgx-1v"), 4, exact=False)
    orders = [order for each in found for order in each.orders or ()]
    assert orders
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (Strategy("sharded"), "sharded"),
        (Strategy("servers", helpers=4), "servers on 4"),
        (
            Strategy("hierarchical", groups=((4, 4),), ways=("sharded", "halving-doubling")),
            "hierarchical 2x4 sharded+halving-doubling",
        ),
        (Strategy("hierarchical", groups=((3, 2),)), "hierarchical 3,2"),
        (Strategy("rings", orders=((0, 2, 1), (0, 1, 2))), "rings 2 found"),
    ],
)
def test_labels(strategy: Strategy, text: str) -> None:
    assert label(strategy) == text
