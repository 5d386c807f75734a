"""Figures that are known, and what the record says."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.simulator.nets import cube_mesh_rings, star

from samegrad.errors import ConfigurationError, TopologyError
from samegrad.schedules import Collective, Cut, Options, Schedule, build, build_for, pipelined
from samegrad.schedules.ir import Op, Round
from samegrad.simulator import Simulation, simulate
from samegrad.simulator.placed import PlacedSchedule
from samegrad.topology import Kind, Link, Node, Topology


def milliseconds(found: Simulation) -> float:
    return found.seconds * 1e3


@pytest.mark.parametrize("barriers", [False, True])
@pytest.mark.parametrize(
    ("name", "expected"),
    [("one-device", 60), ("host", 80), ("sharded", 15), ("ring", 15), ("halving-doubling", 15), ("binomial-tree", 40)],
)
def test_four_devices_on_a_pcie_switch(name: str, expected: float, barriers: bool) -> None:
    found = simulate(build(name, 4), Topology.preset("pcie-switch-4"), nbytes=160e6, barriers=barriers)
    assert milliseconds(found) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("barriers", [False, True])
def test_a_ring_hardly_depends_on_the_number_of_devices(barriers: bool) -> None:
    for n in (2, 3, 4, 5, 8, 17, 64):
        found = simulate(build("ring", n), star(n), nbytes=160e6, barriers=barriers)
        assert found.seconds == pytest.approx(2 * (n - 1) / n * 160e6 / 1e9, rel=1e-9)
        assert found.bus_bandwidth == pytest.approx(1e9)
        assert found.utilization == pytest.approx(1.0)


def test_rings_of_the_cube_mesh() -> None:
    topology = Topology.preset("dgx-1v")
    options = Options(orders=cube_mesh_rings, speeds=(2, 1))
    one_way = simulate(build("rings", 8, options=options), topology, nbytes=160e6)
    assert milliseconds(one_way) == pytest.approx(2 * 7 / 8 * 160e6 / 54e9 * 1e3)
    assert f"{milliseconds(one_way):.2f}" == "5.19"
    both_ways = simulate(build("two-way-rings", 8, options=options), topology, nbytes=160e6)
    assert milliseconds(both_ways) == pytest.approx(milliseconds(one_way) / 2)
    assert f"{milliseconds(both_ways):.2f}" == "2.59"


@pytest.mark.parametrize(("workers", "servers"), [(4, 1), (4, 2), (4, 4), (4, 8), (6, 3), (8, 1)])
def test_servers(workers: int, servers: int) -> None:
    topology, nbytes = star(workers, servers), 1e9
    once = max(1.0, workers / servers)  # max(M/B, mM/(nB))
    plain = build("servers", workers, helpers=servers)
    assert simulate(plain, topology, nbytes).seconds == pytest.approx(2 * once)
    for pieces in (2, 10, 100):
        assert simulate(pipelined(plain, pieces), topology, nbytes).seconds == pytest.approx(once * (1 + 1 / pieces))


@pytest.mark.parametrize(("n", "k"), [(4, 0), (4, 1), (4, 2), (4, 4), (8, 3), (5, 5), (2, 1)])
def test_the_best_placement_of_servers_on_gpu_and_cpu_hosts(n: int, k: int) -> None:
    topology, nbytes = star(n, k), 1e9
    best = 2 * n * (n - 1) / (n * n + k * n - 2 * k) * nbytes / 1e9
    plain = build("servers", n, helpers=k, options=Options(share="all"))
    times = [simulate(pipelined(plain, pieces), topology, nbytes).seconds for pieces in (1, 10, 100)]
    assert times[0] <= 2 * best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= times[2] <= best * 1.02
    assert times == sorted(times, reverse=True)


def test_latency_and_messages_take_their_time() -> None:
    nbytes, n = 8e3, 8
    ring = build("ring", n)
    each = nbytes / n / 1e9
    assert simulate(ring, star(n, latency=1e-6), nbytes).seconds == pytest.approx(14 * (each + 2e-6))
    # One message at a time passes a link: all of it enters on both links at the same time.
    assert simulate(ring, star(n, per_message=3e-6), nbytes).seconds == pytest.approx(14 * (each + 3e-6))
    # Seven messages enter one after the other; then their bytes share the link.
    sharded = simulate(build("sharded", n), star(n, per_message=3e-6), nbytes)
    assert sharded.seconds == pytest.approx(2 * 7 * (each + 3e-6))
    assert sharded.busy.max() == pytest.approx(14 * (each + 3e-6))


def test_additions_take_their_time_on_the_device_that_adds() -> None:
    nbytes = 1e9
    found = simulate(build("one-device", 4), star(4, add_rate=2e9), nbytes)
    assert found.seconds == pytest.approx(3.0 + 3 * 0.5 + 3.0)
    found = simulate(build("sharded", 4), star(4, add_rate=2e9), nbytes)
    assert found.seconds == pytest.approx(2 * 0.75 + 3 * 0.125)


def moved(*moves: tuple[int, int, int, int, int, Op]) -> Round:
    return Round(np.array(moves, np.int32))


def made_up(rounds: list[Round], ranks: int, chunks: int = 1, weights: tuple[int, ...] | None = None) -> Schedule:
    return Schedule("made-up", Collective.ALL_REDUCE, Cut.equal(ranks), chunks, rounds, weights=weights)


def test_a_message_starts_when_what_it_needs_is_there() -> None:
    copy = Op.COPY
    # Rank 0 is slow to give to 1; 2 gives to 3 meanwhile, and 3 to 2 what it had, in the next round.
    links = [Link(f"d{number}", "switch", 1e9 if number else 0.25e9) for number in range(4)]
    nodes = [*(Node(f"d{number}", Kind.DEVICE) for number in range(4)), Node("switch", Kind.SWITCH)]
    topology = Topology("uneven", tuple(nodes), tuple(links))
    rounds = [
        moved((0, 0, 1, 0, 0, copy), (2, 0, 3, 1, 0, copy)),
        moved((3, 1, 2, 1, 0, copy), (3, 0, 1, 0, 0, copy)),  # the second one must not overwrite what comes from 0
    ]
    found = simulate(made_up(rounds, 4), topology, 1e9)
    assert found.starts.tolist() == pytest.approx([0.0, 0.0, 4.0, 1.0])  # 0 to 1, 2 to 3, 3 to 1, 3 to 2
    assert found.ends.tolist() == pytest.approx([4.0, 1.0, 5.0, 2.0])
    assert found.rounds.tolist() == [[0.0, 4.0], [1.0, 5.0]]
    assert [(step.source, step.target) for step in found.critical_path] == [(0, 1), (3, 1)]
    together = simulate(made_up(rounds, 4), topology, 1e9, barriers=True)
    assert together.rounds.tolist() == [[0.0, 4.0], [4.0, 6.0]]  # here the two of rank 3 share its link


def test_what_is_still_read_is_not_overwritten() -> None:
    rounds = [moved((0, 0, 1, 1, 0, Op.COPY)), moved((2, 0, 0, 0, 0, Op.COPY))]
    assert simulate(made_up(rounds, 3), star(3), 1e9).rounds.tolist() == [[0.0, 1.0], [1.0, 2.0]]
    elsewhere = [rounds[0], moved((2, 0, 0, 1, 0, Op.COPY))]
    assert simulate(made_up(elsewhere, 3), star(3), 1e9).rounds.tolist() == [[0.0, 1.0], [0.0, 1.0]]


def test_a_rank_sends_round_after_round() -> None:
    rounds = [moved((0, 0, 1, 1, 0, Op.COPY)), moved((0, 0, 2, 1, 0, Op.COPY))]
    found = simulate(made_up(rounds, 3), star(3, latency=0.5), 1e9)
    assert found.rounds.tolist() == [[0.0, 2.0], [1.0, 3.0]]  # the second one need not wait for the first to arrive


def test_chunks_between_two_ranks_are_one_message() -> None:
    moves = [(0, 0, 1, 0, chunk, Op.COPY) for chunk in range(4)]
    found = simulate(made_up([moved(*moves)], 2, 4, weights=(1, 2, 0, 3)), star(2, per_message=1e-3), 6e6)
    assert found.messages.nbytes.tolist() == [6e6]
    assert found.seconds == pytest.approx(7e-3)


def test_the_record() -> None:
    found = simulate(build("ring", 4), Topology.preset("pcie-switch-4"), nbytes=160e6)
    assert found.algorithm_bandwidth == pytest.approx(160e6 / 15e-3)
    assert found.bus_bandwidth == pytest.approx(16e9)
    assert found.busiest_link == "gpu0 -> plx0"
    assert found.placement == ("gpu0", "gpu1", "gpu2", "gpu3")
    assert found.rounds.shape == (6, 2)
    assert found.rounds[:, 1].tolist() == pytest.approx([2.5e-3 * number for number in range(1, 7)])
    assert [step.number_of_round for step in found.critical_path] == list(range(6))
    for before, behind in zip(found.critical_path, found.critical_path[1:], strict=False):
        assert behind.start == pytest.approx(before.end)
    record = found.to_json()
    assert json.loads(json.dumps(record))["time_s"] == found.seconds
    assert "steps" not in repr(found)


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all-reduce", Fraction(3, 2)), ("reduce-scatter", Fraction(3, 4)), ("all-gather", Fraction(3, 4))],
)
def test_bus_bandwidth_of_the_halves(collective: str, factor: Fraction) -> None:
    found = simulate(build("ring", 4, collective=collective), star(4), 1e9)
    assert found.seconds == pytest.approx(float(factor))
    assert found.bus_bandwidth == pytest.approx(1e9)


def test_one_rank_has_nothing_to_do() -> None:
    for barriers in (False, True):
        found = simulate(build("ring", 1), star(1), 1e9, barriers=barriers)
        assert (found.seconds, found.busiest_link, found.critical_path, found.utilization) == (0.0, "", (), 0.0)
        assert math.isinf(found.algorithm_bandwidth)
        assert found.to_json()["algbw"] is None


def test_placement() -> None:
    topology = star(3, 2)
    hosts = simulate(build("servers", 3, helpers=2), topology, 1e9)
    assert hosts.placement == ("d0", "d1", "d2", "h0", "h1")
    assert simulate(build("servers", 3, helpers=3), topology, 1e9).placement[3:] == ("h0", "h1", "h0")
    moved_ = simulate(build("host", 3), topology, 1e9, placement=["d2", "d1", "d0", "h1"])
    assert moved_.busiest_link == "h1 -> switch"
    # What is sent between ranks of one node takes no link.
    shared = simulate(build("host", 3), topology, 1e9, placement=["d0", "d1", "d2", "d0"])
    assert shared.seconds == pytest.approx(4.0)


@pytest.mark.parametrize("nbytes", [0, -1.0, 1e-300, 1e19, math.inf, math.nan, "160MB", None, True])
def test_absurd_sizes(nbytes: float) -> None:
    with pytest.raises(ConfigurationError, match=r"ring: nbytes must be a number of bytes from 1 to 1e\+18; got"):
        simulate(build("ring", 2), star(2), nbytes)


@pytest.mark.parametrize("kind", [np.int64, np.uint32, np.float32, np.float64])
def test_sizes_may_be_numbers_of_numpy(kind: type[np.number[Any]]) -> None:
    found = simulate(build("ring", 2), star(2), kind(1 << 20))  # type: ignore[arg-type]
    assert found.nbytes == 1 << 20
    assert type(found.nbytes) is float
    assert found.seconds == simulate(build("ring", 2), star(2), 1 << 20).seconds


@pytest.mark.parametrize("barriers", [False, True])
@pytest.mark.parametrize("name", ["sharded", "ring", "halving-doubling"])
def test_a_placed_schedule_keeps_nothing_of_the_sizes_before(name: str, barriers: bool) -> None:
    schedule = pipelined(build(name, 4), 3)
    topology = star(4, latency=1e-6, per_message=1e-7, add_rate=2e9)
    placed = PlacedSchedule(schedule, topology, barriers=barriers)
    for nbytes in (1e9, 1, 12345.5, 1e9):
        found, fresh = placed.simulate(nbytes), simulate(schedule, topology, nbytes, barriers=barriers)
        assert found.to_json() == fresh.to_json()
        assert found.critical_path == fresh.critical_path
        for part in ("starts", "arrivals", "ends", "rounds", "busy"):
            assert np.array_equal(getattr(found, part), getattr(fresh, part))


def test_what_does_not_fit() -> None:
    with pytest.raises(ConfigurationError, match="star has 3 devices, too few for 4 ranks that hold gradients"):
        simulate(build("ring", 4), star(3), 1e9)
    with pytest.raises(ConfigurationError, match="star has no node of kind host"):
        simulate(build("host", 3), star(3), 1e9)
    with pytest.raises(ConfigurationError, match="placement: 3 ranks need as many nodes; got 2"):
        simulate(build("ring", 3), star(3), 1e9, placement=["d0", "d1"])
    with pytest.raises(TopologyError, match="there is no node 'd9'"):
        simulate(build("ring", 2), star(2), 1e9, placement=["d0", "d9"])


@pytest.mark.parametrize("name", ["sharded", "halving-doubling", "ring", "hierarchical"])
def test_uneven_shares_cost_their_subtrees(name: str) -> None:
    """Nobody is faster than its busiest link, which carries what the schedule says."""
    cut = Cut.of([range(3), range(3, 6), range(6, 8)], leaves=8)
    schedule = build_for(name, cut)
    found = simulate(schedule, star(3), 1e9)
    costs = schedule.costs()
    assert found.busy[::2].tolist() == pytest.approx([float(share) for share in costs.sent])
    assert found.busy[1::2].tolist() == pytest.approx([float(share) for share in costs.received])
    assert found.seconds >= found.busy.max() * (1 - 1e-9)
