"""Many ranks: rounds in short are simulated as if they were written out, and thousands of devices take seconds."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
from tests.schedules.cuts import cuts_of
from tests.simulator.nets import star

from samegrad.schedules import ALGORITHMS, Options, build, build_for
from samegrad.simulator import simulate
from samegrad.topology import Topology


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_in_short_and_written_out_take_the_same(name: str) -> None:
    for ranks in (2, 5, 8):
        for cut in cuts_of(ranks, ALGORITHMS[name].helpers):
            short = build_for(name, cut)
            long = dataclasses.replace(short, rounds=list(short.rounds))
            topology = star(ranks, 1, latency=1e-6, per_message=1e-6, add_rate=3e9)
            times = [simulate(each, topology, 1e6) for each in (short, long)]
            np.testing.assert_allclose(times[0].rounds, times[1].rounds, rtol=1e-12)
            assert len(times[0].messages) == len(times[1].messages)


def hierarchical_seconds(hosts: int) -> tuple[float, float]:
    """As it must be, for 1 GB over hosts of 8 with a 100 Gb/s card each, and as simulated."""
    topology = Topology.preset(f"ethernet-{hosts}x8@100Gb")
    schedule = build("hierarchical", 8 * hosts, options=Options(groups=((8,) * hosts,)))
    within = 2 * 7 / 8 * 1e9 / 16e9
    between = 2 * (hosts - 1) / hosts * 1e9 / 12.5e9
    latencies = 2 * (hosts - 1).bit_length() * 20e-6
    return within + between + latencies, simulate(schedule, topology, 1e9).seconds


@pytest.mark.parametrize("hosts", [2, 16, 64])
def test_hierarchical_on_many_hosts(hosts: int) -> None:
    expected, found = hierarchical_seconds(hosts)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_hierarchical_on_16384_devices() -> None:
    start = time.process_time()
    expected, found = hierarchical_seconds(2048)
    assert found == pytest.approx(expected, rel=1e-9)
    assert time.process_time() - start < 30


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["pcie-switch-1024", "ethernet-128x8@25Gb"])
def test_a_ring_of_1024(topology: str) -> None:
    ring, places = build("ring", 1024), Topology.preset(topology)
    start = time.process_time()
    found = simulate(ring, places, 1e9)
    assert time.process_time() - start < 5
    assert found.busy.max() <= found.seconds * (1 + 1e-9)
    assert found.utilization > 0.999
