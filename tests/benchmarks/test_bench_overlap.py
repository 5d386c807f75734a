"""The benchmark of overlap runs, on sizes that mean nothing; and what can be hidden is what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.bench_overlap import Load, most_hidden
from benchmarks.emulated_hosts import lacking

from benchmarks import bench_overlap


def test_what_can_be_hidden() -> None:
    load = Load(layers=4, numel=100, forward_s=0.0, backward_s=1.0)
    assert most_hidden(load, 0.4) == pytest.approx(0.3)  # a quarter each; only the last bucket is ready too late
    assert most_hidden(load, 8.0) == pytest.approx(3.0)  # the link is busy from the first gradient on
    assert most_hidden(Load(4, 100, 0.0, 1.0, per_bucket=4), 8.0) == pytest.approx(0.0)
    assert most_hidden(Load(4, 100, 0.0, 1.0, per_bucket=3), 2.0) == pytest.approx(1.0)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("buckets", ["layer", "own"])
def test_the_tiny_preset_measures_both_wrappers(
    buckets: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if missing := lacking():
        pytest.skip(f"needs {missing}")
    file = tmp_path / "found.json"
    assert bench_overlap.main(["--preset", "tiny", "--buckets", buckets, "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    found = json.loads(file.read_text())["found"]
    assert list(found) == bench_overlap.WAYS
    assert all(seconds > 0 for times in found.values() for each in times.values() for seconds in each)
    assert "computing emulated by sleeping" in printed
    assert ("can hide" in printed) == (buckets == "layer")
    assert "times as long as one of DDP" in printed


def test_a_way_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_overlap.main(["--ways", "horovod"])
    assert "there is no 'horovod'; there are samegrad, PyTorch DDP" in capsys.readouterr().err
