"""The benchmark of checkpoints runs, on sizes that mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bench_checkpoint

pytestmark = pytest.mark.dist


def test_it_measures_the_disk_and_a_checkpoint_in_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_checkpoint.main(["--folder", str(tmp_path), "--megabytes", "2", "--rounds", "2"]) == 0
    first, second, *lines = capsys.readouterr().out.splitlines()
    assert "cores" in first
    assert second.startswith("2 MB of state, 2 rounds")
    figures = [float(line[44:53]) for line in lines if not line.startswith("k=")]
    assert len(figures) == 10
    assert min(figures) > 0
    assert list(tmp_path.iterdir()) == []
