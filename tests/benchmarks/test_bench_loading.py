"""The benchmark of loading runs, on sizes that mean nothing, and says its conditions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_loading

pytestmark = pytest.mark.dist


@pytest.mark.slow
def test_the_tiny_preset_measures_each_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    words = "bytes in memory,stream"
    assert bench_loading.main(["--preset", "tiny", "--ways", words, "--json", str(file)]) == 0
    printed = capsys.readouterr().out.splitlines()
    found = json.loads(file.read_text())
    assert printed[0] == found["conditions"]
    assert "synthetic images, batch 128, cpu:2" in printed[0]
    names = [way.name for way in bench_loading.WAYS if "bytes" in way.name or "stream" in way.name]
    names.insert(0, "tensors in memory")
    assert list(found["steps"]) == list(found["epochs"]) == names
    assert [line.split("  ")[0] for line in printed[1:]] == ["a step", *names, "an epoch", *names]
    for results in (found["steps"], found["epochs"]):
        assert all(len(rates) == 1 and rates[0] > 0 for rates in results.values())
