"""The benchmark of unequal devices runs, on sizes that mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_shares

pytestmark = pytest.mark.dist


@pytest.mark.slow
def test_the_tiny_preset_compares_equal_and_measured_shares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    assert bench_shares.main(["--preset", "tiny", "--speeds", "3,1", "--json", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(file.read_text())
    assert found["equal"]["shards"] == [7, 7]
    assert found["auto"]["shards"][0] > 7
    assert found["auto"]["changed_at"] > 0
    assert [line.split("  ")[0].strip() for line in lines[2:7]] == [
        "worker 0 alone",
        "worker 1 alone",
        "sum",
        "shares: equal",
        "shares: auto",
    ]
