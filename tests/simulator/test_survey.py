"""All algorithms on one topology: how they are laid out, in which order they come, what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulator.nets import star

from samegrad.errors import ConfigurationError, OutputError
from samegrad.output import check_plot
from samegrad.schedules import ALGORITHMS
from samegrad.simulator import survey as module
from samegrad.simulator.plot import draw_times
from samegrad.simulator.survey import first_devices, laid_out, simulate_all
from samegrad.topology import Topology


def test_everything_that_fits_fastest_first() -> None:
    result = simulate_all(Topology.preset("pcie-switch-4"), 160e6)
    times = {candidate.algorithm.name: simulation.seconds for candidate, simulation in result.found}
    assert set(times) == set(ALGORITHMS)
    assert list(times.values()) == pytest.approx(sorted(times.values()))
    assert times["ring"] == pytest.approx(15e-3)
    assert list(times)[-2:] == ["host", "servers"]
    # Those that are equally fast come in the order of the table.
    equal = [name for name in times if times[name] == pytest.approx(15e-3)]
    assert equal == [name for name in ALGORITHMS if name in equal]
    assert not result.left_out


def test_rings_of_the_cube_mesh_are_found() -> None:
    topology = Topology.preset("dgx-1v")
    result = simulate_all(topology, 160e6, ["ring", "rings", "two-way-rings"])
    times = {candidate.algorithm.name: simulation.seconds for candidate, simulation in result.found}
    assert list(times) == ["two-way-rings", "rings", "ring"]
    assert times["rings"] == pytest.approx(2 * 7 / 8 * 160e6 / 54e9)
    assert times["two-way-rings"] == pytest.approx(times["rings"] / 2)
    # Some neighbours in the order of the ranks share no NVLink; a ring goes another way, over double links.
    assert times["ring"] == pytest.approx(2 * 7 / 8 * 160e6 / 36e9)


def test_hosts_are_the_groups_and_the_servers() -> None:
    topology = Topology.preset("ethernet-4x2@25Gb")
    hierarchical = laid_out("hierarchical", topology).simulate(topology, 1e9)
    expected = 2 / 2 * 1e9 / 16e9 + 2 * 3 / 4 * 1e9 / 3.125e9 + 2 * 2 * 20e-6
    assert hierarchical.seconds == pytest.approx(expected)
    servers = laid_out("servers", topology).simulate(topology, 1e9)
    assert servers.placement[8:] == tuple(f"host{number}/cpu0" for number in range(4))


def test_pieces_and_barriers() -> None:
    topology = Topology.preset("pcie-switch-4")
    (pair,) = simulate_all(topology, 160e6, ["host"], pieces=8).found
    assert pair[1].seconds == pytest.approx(45e-3)
    (pair,) = simulate_all(topology, 160e6, ["host"], barriers=True).found
    assert pair[1].barriers


def test_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    without_host = star(3)
    result = simulate_all(without_host, 1e6)
    assert set(result.left_out) == {"host"}
    assert "no node of kind host" in result.left_out["host"]
    with pytest.raises(ConfigurationError, match="no node of kind host"):
        simulate_all(without_host, 1e6, ["ring", "host"])
    with pytest.raises(ConfigurationError, match="there is no algorithm 'rin'; did you mean 'ring'"):
        simulate_all(without_host, 1e6, ["rin"])
    monkeypatch.setattr(module, "_MOST_DEVICES", {"sharded": 2})
    assert "name it to see it" in simulate_all(without_host, 1e6).left_out["sharded"]
    assert simulate_all(without_host, 1e6, ["sharded"]).found


def test_fewer_devices() -> None:
    part = first_devices(Topology.preset("ethernet-2x4@25Gb"), 5)
    assert part.devices == (*(f"host0/gpu{number}" for number in range(4)), "host1/gpu0")
    assert part.hosts == ("host0/cpu0", "host1/cpu0")
    assert first_devices(star(3), 3).links == star(3).links


def test_no_link_is_busy_for_more_than_all_of_the_time() -> None:
    parts = [found.utilization for _, found in simulate_all(Topology.preset("pcie-switch-4"), 160e6).found]
    assert max(parts) == 1.0
    assert min(parts) > 0.4


@pytest.mark.parametrize(("devices", "ending"), [(1, "svg"), (5, "png"), (20, "pdf")])
def test_plot(devices: int, ending: str, tmp_path: Path) -> None:
    topology = star(devices, 1, latency=1e-6)
    candidates = [candidate for candidate, _ in simulate_all(topology, 1e6, ["ring", "sharded", "host"]).found]
    path = tmp_path / f"times.{ending}"
    draw_times(candidates, topology, 1e6, False, 1, path)
    assert path.stat().st_size > 5000
    with pytest.raises(ConfigurationError, match=r"times.gif: expected a picture, which ends in .png"):
        check_plot(tmp_path / "times.gif")
    with pytest.raises(OutputError, match="could not be written"):
        draw_times(candidates, topology, 1e6, False, 1, Path(f"/dev/null/times.{ending}"))
