"""Times of exchanges: as simulated, with few simulations."""

from __future__ import annotations

import pytest

from samegrad.planner.exchange_times import ExchangeTimes, Way
from samegrad.simulator import Simulation, simulate
from samegrad.strategy import Strategy
from samegrad.topology import Topology

SIZES = [1e4, 3e8, 1e6, 2e7, 5e6, 1e5, 2.5e8, 1e6]


@pytest.fixture
def simulations(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The sizes that have been simulated."""
    seen: list[float] = []

    exchange = ExchangeTimes.simulation

    def counted(self: ExchangeTimes, way: Way, nbytes: float) -> Simulation:
        seen.append(nbytes)
        return exchange(self, way, nbytes)

    monkeypatch.setattr(ExchangeTimes, "simulation", counted)
    return seen


@pytest.mark.parametrize("name", ["sharded", "one-device", "ring", "halving-doubling"])
def test_without_latency_one_simulation_tells_all(name: str, simulations: list[float]) -> None:
    times = ExchangeTimes(Topology.preset("pcie-switch-4"), 8)
    way = Way(Strategy(name), 4)
    for nbytes in SIZES:
        exact = simulate(times.schedule(way), times.topology, nbytes).seconds
        assert times.seconds(way, nbytes) == pytest.approx(exact, rel=1e-9)
    assert len(simulations) == 1
    assert times.error == 0


@pytest.mark.parametrize("way", [Way(Strategy("sharded"), 8), Way(Strategy("one-device"), 8, 4)])
def test_with_latency_what_is_interpolated_is_as_exact_as_it_says(way: Way, simulations: list[float]) -> None:
    times = ExchangeTimes(Topology.preset("ethernet-4x2@25Gb"), 8)
    for nbytes in [*SIZES, *(nbytes * 1.3 for nbytes in SIZES)]:
        exact = simulate(times.schedule(way), times.topology, nbytes).seconds
        assert times.seconds(way, nbytes) == pytest.approx(exact, rel=5e-3)
    assert len(simulations) < len(SIZES)
    assert times.error <= 5e-3


@pytest.mark.parametrize("way", [Way(Strategy("sharded"), 8), Way(Strategy("one-device"), 8, 4)])
def test_a_fit_takes_few_simulations_and_says_of_all_sizes_what_they_would(way: Way, simulations: list[float]) -> None:
    times = ExchangeTimes(Topology.preset("ethernet-4x2@25Gb"), 8)
    sizes = [1e5 * 1.3**number for number in range(24)]
    times.fit(way, sizes)
    fitted = len(simulations)
    assert fitted == 5
    for nbytes in sizes:
        exact = simulate(times.schedule(way), times.topology, nbytes).seconds
        assert times.seconds(way, nbytes) == pytest.approx(exact, rel=5e-3)
    assert len(simulations) < len(sizes)


@pytest.mark.parametrize(
    ("name", "preset", "devices", "pieces"),
    [
        ("binomial-tree", "ethernet-5x1@10Gb", 3, 4),
        ("two-way-ring", "ethernet-4x2@1Gb", 5, 1),
        ("sharded", "fat-tree-2x2x2@100Gb", 8, 4),
    ],
)
def test_a_bend_between_sizes_that_are_far_apart_is_seen(name: str, preset: str, devices: int, pieces: int) -> None:
    """From 1 byte to 10 GB: nearly all of the time of the largest lies on a line from anywhere below it."""
    sizes = [10 ** (number / 2) for number in range(21)]
    times = ExchangeTimes(Topology.preset(preset), 16)
    way = Way(Strategy(name), devices, pieces)
    times.fit(way, sizes)
    for nbytes in sizes:
        exact = simulate(times.schedule(way), times.topology, nbytes).seconds
        assert times.seconds(way, nbytes) == pytest.approx(exact, rel=5e-3)


def test_traffic_grows_with_the_subtrees() -> None:
    times = ExchangeTimes(Topology.preset("pcie-switch-4"), 8)
    assert times.traffic(Way(Strategy("sharded"), 4)) == 1.5
    # {01}{2} | {3}{45} | {67}: the first two send two sums of 2/3 M each, and all send what they have added
    assert times.traffic(Way(Strategy("sharded"), 3)) == 2
    assert times.traffic(Way(Strategy("sharded"), 3, 4)) == 2


@pytest.mark.parametrize("pieces", [1, 2, 8])
def test_no_pipeline_is_faster_than_its_busiest_link(pieces: int) -> None:
    times = ExchangeTimes(Topology.preset("dgx-1v"), 8)
    for name in ("sharded", "binomial-tree", "halving-doubling", "one-device"):
        way = Way(Strategy(name), 8, pieces)
        assert times.seconds(way, 1e8) >= times.least_seconds(way, 1e8) * (1 - 1e-9)
