"""The presets: sizes, links and routes of each, and what is refused."""

from __future__ import annotations

import pytest

from samegrad.errors import TopologyError
from samegrad.topology import Kind, Topology


def way(topology: Topology, a: str, b: str) -> list[str]:
    return [topology.link_name(number) for number in topology.route(a, b)]


@pytest.mark.parametrize("devices", [1, 2, 4, 9])
def test_pcie_switch(devices: int) -> None:
    topology = Topology.preset(f"pcie-switch-{devices}")
    assert len(topology.devices) == devices
    assert set(topology.capacities) == {16e9}
    assert not topology.latencies.any()
    assert way(topology, topology.devices[-1], "cpu0") == [f"gpu{devices - 1} -> plx0", "plx0 -> cpu0"]


def test_dgx_1v() -> None:
    topology = Topology.preset("dgx-1v")
    meshed = [0] * 8
    for a, b, number in topology.device_links():
        link = topology.links[number]
        assert link.bandwidth == 18e9 * link.count
        meshed[a] += link.count
        meshed[b] += link.count
    assert meshed == [6] * 8
    assert way(topology, "gpu0", "gpu4") == ["gpu0 -> gpu4"]
    assert way(topology, "gpu0", "gpu5")[1:-1] == ["plx0 -> root0", "root0 -> root1", "root1 -> plx2"]


def test_ethernet() -> None:
    topology = Topology.preset("ethernet-4x8@25Gb")
    assert topology.name == "ethernet-4x8@25Gb"
    assert len(topology.devices) == 32
    assert len(topology.hosts) == 4
    middle = way(topology, "host0/gpu0", "host3/gpu7")[1:-1]
    assert middle == [
        "host0/plx0 -> host0/nic0",
        "host0/nic0 -> switch0",
        "switch0 -> host3/nic0",
        "host3/nic0 -> host3/plx0",
    ]
    route = topology.route("host0/gpu0", "host3/gpu7")
    assert min(topology.capacities[list(route)]) == 25e9 / 8
    assert {node.host for node in topology.nodes if node.kind is Kind.SWITCH} == {"", *(f"host{n}" for n in range(4))}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dgx1v", "there is no preset 'dgx1v'; did you mean 'dgx-1v'?"),
        ("pcie-switch-0", "the number of devices must be at least 1 and not absurd; got 0"),
        ("pcie-switch--3", "got -3"),
        ("pcie-switch-99999999999", "got 99999999999"),
        ("ethernet-0x4@1Gb", "the number of hosts must be at least 1"),
        ("ethernet-99999x999@1Gb", "at most 262144 nodes"),
        ("ethernet-4x8@25", "expected a rate such as 25Gb"),
        ("ethernet-4x8@0Gb", "the rate of a preset must be more than 0"),
        ("", "there is no preset ''"),
    ],
)
def test_refused(name: str, message: str) -> None:
    with pytest.raises(TopologyError) as info:
        Topology.preset(name)
    assert message in str(info.value)
