"""The benchmark of exchanges between hosts runs, on sizes that mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.emulated_hosts import lacking

from benchmarks import bench_collectives_hosts


@pytest.mark.dist
@pytest.mark.slow
def test_the_tiny_preset_measures_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if missing := lacking():
        pytest.skip(f"needs {missing}")
    file = tmp_path / "found.json"
    assert bench_collectives_hosts.main(["--preset", "tiny", "--json", str(file)]) == 0
    found = json.loads(file.read_text())["found"]["2"]["40000"]
    assert {way: len(seconds) for way, seconds in found.items()} == {"samegrad": 1, "Gloo": 1}
    assert all(seconds[0] > 0 for seconds in found.values())
    assert "x Gloo" in capsys.readouterr().out


def test_hosts_that_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_collectives_hosts.main(["--hosts", "1"])
    assert "expected 2 to 16 --hosts" in capsys.readouterr().err
