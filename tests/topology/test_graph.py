"""Nodes and links: what is refused, and what a topology says about itself."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

from samegrad.errors import TopologyError
from samegrad.topology import Kind, Link, Node, Topology

PAIR = (Node("a", Kind.DEVICE), Node("b", Kind.DEVICE))


def test_directed_links_and_their_figures() -> None:
    nodes = (*PAIR, Node("s", Kind.SWITCH), Node("h", Kind.HOST))
    links = (Link("a", "s", 2.0, latency=0.5), Link("s", "b", 3.0, per_message=0.25), Link("h", "s", 4.0))
    topology = Topology("three", nodes, links)
    assert (topology.devices, topology.hosts) == (("a", "b"), ("h",))
    assert topology.capacities.tolist() == [2, 2, 3, 3, 4, 4]
    assert topology.latencies.tolist() == [0.5, 0.5, 0, 0, 0, 0]
    assert topology.per_messages.tolist() == [0, 0, 0.25, 0.25, 0, 0]
    assert [topology.link_name(number) for number in range(4)] == ["a -> s", "s -> a", "s -> b", "b -> s"]
    assert topology.route("a", "b") == (0, 2)
    assert topology.route("b", "a") == (3, 1)
    assert not list(topology.device_links())


def test_figures_cannot_be_changed() -> None:
    topology = Topology("pair", PAIR, (Link("a", "b", 1.0),))
    with pytest.raises(ValueError, match="read-only"):
        topology.capacities[0] = 2
    assert np.array_equal(topology.capacities, [1, 1])


def test_equal_by_value_and_whole_after_pickling() -> None:
    topology = Topology("pair", PAIR, (Link("a", "b", 1.0),))
    topology.route("a", "b")
    assert pickle.loads(pickle.dumps(topology)) == topology == Topology("pair", PAIR, (Link("a", "b", 1.0),))


def test_device_links_are_ranks() -> None:
    nodes = (Node("h", Kind.HOST), *PAIR)
    topology = Topology("pair", nodes, (Link("h", "a", 1.0), Link("b", "a", 1.0)))
    assert list(topology.device_links()) == [(1, 0, 1)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bandwidth": 0.0}, "link a - b: bandwidth must be positive bytes/s, from 1 to 1e.18; got 0.0"),
        ({"bandwidth": -1.0}, "got -1.0"),
        ({"bandwidth": math.nan}, "got nan"),
        ({"bandwidth": math.inf}, "got inf"),
        ({"bandwidth": 1e-320}, "bandwidth must be positive bytes/s, from 1 to 1e.18; got 1e-320"),
        ({"bandwidth": 1e19}, "got 1e.19"),
        ({"latency": -1.0}, "link a - b: latency must be seconds, 0 to 1e.06; got -1.0"),
        ({"per_message": math.inf}, "per_message must be seconds, 0 to 1e.06; got inf"),
        ({"count": 0}, "count must be 1 to 65536 parallel links; got 0"),
        ({"count": 10**21}, "count must be 1 to 65536 parallel links; got 10"),
        ({"b": "a"}, "link a - a: a link joins two different nodes"),
    ],
)
def test_links_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Link(**{"a": "a", "b": "b", "bandwidth": 1.0, **fields})


@pytest.mark.parametrize("name", ["", " a", "a\n", "\x1b[1m"])
def test_names_that_cannot_be_printed(name: str) -> None:
    with pytest.raises(TopologyError, match="a node needs a name"):
        Node(name, Kind.DEVICE)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, 1e-320])
def test_rates_of_addition_that_cannot_be(rate: float) -> None:
    with pytest.raises(TopologyError, match="node 'a': add_rate must be positive"):
        Node("a", Kind.DEVICE, add_rate=rate)


@pytest.mark.parametrize(
    ("nodes", "links", "message"),
    [
        ((*PAIR, PAIR[0]), (), "t: two nodes are named 'a'"),
        (PAIR, (("a", "b"), ("b", "c")), "t: link b - c joins an unknown node 'c'"),
        (PAIR, (("a", "b"), ("b", "a")), "t: links 0 and 1 both join b and a"),
        (PAIR, (), "t: it is not connected: no links lead from a to b"),
        ((Node("switch", Kind.SWITCH),), (), "t: there is no device among its 1 nodes"),
        ((*PAIR, Node("switch", Kind.SWITCH)), (("a", "b"), ("b", "swich")), "'swich'; did you mean 'switch'?"),
    ],
)
def test_topologies_that_cannot_be(nodes: Any, links: Any, message: str) -> None:
    with pytest.raises(TopologyError) as info:
        Topology("t", tuple(nodes), tuple(Link(a, b, 1.0) for a, b in links))
    assert message in str(info.value)


def test_unknown_nodes_are_named_with_the_nearest() -> None:
    topology = Topology.preset("pcie-switch-4")
    with pytest.raises(TopologyError, match="pcie-switch-4: there is no node 'gpu'; did you mean 'gpu"):
        topology.route("gpu0", "gpu")
