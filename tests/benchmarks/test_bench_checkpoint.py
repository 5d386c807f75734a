"""The benchmark of checkpoints runs, on sizes that mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_checkpoint

pytestmark = pytest.mark.dist


@pytest.mark.slow
def test_it_measures_the_disk_and_a_checkpoint_in_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "found.json", tmp_path / "saved"
    folder.mkdir()
    assert bench_checkpoint.main(["--folder", str(folder), "--preset", "tiny", "--json", str(file)]) == 0
    first, second, *lines = capsys.readouterr().out.splitlines()
    assert "cores" in first
    assert second.startswith("2 MB of state, 2 rounds")
    figures = [float(line[44:53]) for line in lines if not line.startswith("k=")]
    assert len(figures) == 10
    assert min(figures) > 0
    assert list(folder.iterdir()) == []
    found = json.loads(file.read_text())
    assert found["conditions"] == f"{first}, 2 MB of state"
    assert list(found["results"]) == [line for line in lines if line.startswith("k=")]
    for by_name in found["results"].values():
        assert list(map(len, by_name.values())) == [2] * 5
