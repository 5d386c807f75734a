"""The benchmark of starting runs, once, and measures each way that it names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_start

pytestmark = pytest.mark.dist


@pytest.mark.slow
@pytest.mark.parametrize("words", ["plain PyTorch,train --devices cpu:1", "torchrun,--resume lenet"])
def test_the_tiny_preset_measures_each_way(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    assert bench_start.main(["--preset", "tiny", "--ways", words, "--json", str(file)]) == 0
    conditions, _, *lines = capsys.readouterr().out.splitlines()
    found = json.loads(file.read_text())
    assert found["conditions"] == conditions
    assert "cores" in conditions
    assert [line[:34].strip() for line in lines] == list(found["results"])
    assert all(any(word in way for way in found["results"]) for word in words.split(","))
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in found["results"].values())
