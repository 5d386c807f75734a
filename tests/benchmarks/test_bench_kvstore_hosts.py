"""The benchmark of the store between hosts runs, on sizes that mean nothing; limits are what it says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from benchmarks.bench_kvstore_hosts import PREFIX, Case, cases_of, predict
from benchmarks.emulated_hosts import lacking

from benchmarks import bench_kvstore_hosts


@pytest.mark.parametrize(
    ("case", "times"),
    [
        *((Case(workers, 1), float(workers)) for workers in (1, 2, 3, 4)),
        *((Case(count, count), 1.0) for count in (2, 3, 4)),
        *((Case(count, count, together=True), 2 * (count - 1) / count) for count in (2, 3, 4)),
    ],
)
def test_the_busiest_cable_carries_what_it_must(case: Case, times: float) -> None:
    numel = 12 * 1024 * 64
    found = predict(case, numel, 1e6)
    least = 4 * numel / 1e6 * times
    assert found.busy.max() == pytest.approx(least, rel=1e-3)
    assert least <= found.seconds < 2.01 * least


def test_slices_overlap_what_comes_with_what_goes() -> None:
    one = predict(Case(1, 1), 1000, 1e6)  # one slice: there, and then back
    many = predict(Case(1, 1), 16_000_000, 125e6)
    assert one.seconds == pytest.approx(0.008, rel=0.01)
    assert many.seconds < 1.1 * 0.512


def test_cases() -> None:
    assert list(map(str, cases_of(2))) == [
        "1 worker, 1 server",
        "2 workers, 1 server",
        "2 workers, 2 servers",
        "2 workers, 2 servers beside them",
    ]


@pytest.mark.slow
@pytest.mark.dist
def test_the_tiny_preset_measures_all_cases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if missing := lacking():
        pytest.skip(f"needs {missing}")
    file = tmp_path / "found.json"
    assert bench_kvstore_hosts.main(["--preset", "tiny", "--rate", "100mbit", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    record = json.loads(file.read_text())
    assert record["rate"] == 12.5e6
    assert [row["case"] for row in record["cases"]] == list(map(str, cases_of(2)))
    for row in record["cases"]:
        assert len(row["seconds"]) == 2
        assert min(row["seconds"]) > 0
        assert len(row["plain_s"]) == 2
        assert min(row["plain_s"]) > 0
        assert all(0 < share <= 1 for share in row["cores"])
        assert row["case"] in printed
    assert "100 Mbit/s each way" in printed
    assert f"{PREFIX}-" not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


def test_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert bench_kvstore_hosts.main([]) == 1
    assert "needs root, to make network namespaces" in capsys.readouterr().err


def test_a_rate_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_kvstore_hosts.main(["--rate", "fast"])
    assert "expected a rate such as 25Gb" in capsys.readouterr().err
