"""The benchmark of a step runs, on sizes that mean nothing, and compares what it says it compares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_step

pytestmark = pytest.mark.dist


@pytest.mark.slow
def test_the_tiny_preset_measures_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    words = "ceiling,DDP over Gloo,own loop,k=2 S=2 owner"
    assert bench_step.main(["--models", "mlp", "--preset", "tiny", "--ways", words, "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    found = json.loads(file.read_text())["results"]["mlp"]
    assert list(found) == [line.split("  ")[0] for line in printed.splitlines() if " ms " in line]
    assert all(figures["samples_per_second"] > 0 for figures in found.values())
    assert found["plain PyTorch, 1 thread"]["ratios"] == [1.0]
    assert "owner / ceiling" in printed
    assert "own loop / DDP" in printed
    assert "cores" in printed.splitlines()[0]


def test_every_way_has_a_name_of_its_own_and_equal_work() -> None:
    names = [way.name for way in bench_step.WAYS]
    assert len(set(names)) == len(names)
    for way in bench_step.WAYS:
        assert way.batches == way.ranks or way.ranks == 1, f"{way.name}: each device has the batch of one device"
