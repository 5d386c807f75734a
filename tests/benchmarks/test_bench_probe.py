"""The benchmark of the probe beside other tools: what they print is understood, and what is missing is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_probe, probe_peers
from samegrad.probing.effort import Effort
from samegrad.probing.memory import LATENCY, memory
from samegrad.probing.network import network
from samegrad.probing.storage import storage

EFFORT = Effort(1, 0.001, 1 << 26, 2.0, 1 << 20, ())


def test_a_curve_of_lat_mem_rd() -> None:
    text = '"stride=64\n0.00049 1.207\n0.01562 1.300\n0.25000 4.5\n64.00000 161.25\n\n'
    assert probe_peers.lat_mem_rd_curve(text) == {512: 1.207e-9, 1 << 14: 1.3e-9, 1 << 18: 4.5e-9, 1 << 26: 161.25e-9}


@pytest.mark.parametrize(("level", "nbytes"), [(1, 32768), (2, 1 << 20), (3, 1 << 25)])
def test_caches_of_lscpu(level: int, nbytes: int) -> None:
    names = {"L1d": 32768, "L1i": 65536, "L2": 1 << 20, "L3": 1 << 25}
    text = json.dumps({"caches": [{"name": name, "one-size": size} for name, size in names.items()]})
    assert probe_peers.one_size(text, level) == nbytes


def test_each_pair_is_of_a_task_that_the_probe_has(tmp_path: Path) -> None:
    found = bench_probe.pairs(probe_peers.Tools(tmp_path, 1 << 20, 1), EFFORT.largest)
    with memory(EFFORT) as inside, storage(EFFORT, tmp_path) as disk, network(EFFORT) as wire:
        tasks = {(task.name, task.x) for task in (*inside, *disk, *wire)}
    assert {pair.task for pair in found} <= tasks
    assert (LATENCY, 1 << 26) in {pair.task for pair in found}
    assert {pair.program for pair in found} == set(probe_peers.PACKAGES)


@pytest.mark.parametrize(
    ("probe", "tool", "verdict"),
    [([1.0, 1.0, 9.0], [1.1, 0.9, 1.0], "yes"), ([3.0], [2.0], "no: other words"), ([2.0], [3.0], "no: other words")],
)
def test_a_ratio_is_the_median_of_the_rounds(probe: list[float], tool: list[float], verdict: str) -> None:
    ratio, said = bench_probe.judge({"probe": probe, "tool": tool, "differs": "other words"})
    assert said == verdict
    assert (1 / bench_probe.WITHIN <= ratio <= bench_probe.WITHIN) == (verdict == "yes")


def test_what_is_missing_is_said_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe_peers, "find", lambda program: None if program == "fio" else f"/usr/bin/{program}")
    monkeypatch.setattr(probe_peers.Tools, "disk_delay", lambda *_: 1.0)
    assert bench_probe.main(["--preset", "tiny", "--only", "storage", "--path", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("is not here: apt-get install fio") == 4
    assert list(tmp_path.iterdir()) == []
