"""The benchmark of collectives runs, on sizes that mean nothing, and judges by what it has measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.bench_collectives import GLOO, MB, OPEN_MPI, REQUIREMENTS, WAYS, Found

from benchmarks import bench_collectives

AREA = "exchange area, sharded"


@pytest.mark.dist
def test_the_tiny_preset_measures_every_way_in_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    words = "exchange,private,caller,process_group,sends"
    assert bench_collectives.main(["--preset", "tiny", "--ranks", "2", "--ways", words, "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    record = json.loads(file.read_text())
    assert printed.splitlines()[0] == record["conditions"]
    assert "cores, load" in record["conditions"]
    (by_size,) = record["results"].values()
    assert list(by_size) == ["4000", "64000"]
    names = [way.name for way in WAYS if way is not OPEN_MPI]
    for found in by_size.values():
        assert list(found) == names
        assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in found.values())
    assert all(printed.count(f"  {name}") == len(by_size) for name in names)
    wanted = [each["wanted"] for each in record["requirements"]]
    assert wanted == list(map(str, REQUIREMENTS))
    assert all(f"\n{text}" in printed for text in wanted)
    assert [each["met"] is not None for each in record["requirements"]] == [True, *[False] * 4, True, False]


@pytest.mark.dist
@pytest.mark.skipif(bench_collectives.find_mpirun() is None, reason="Open MPI and mpi4py are not installed")
def test_open_mpi_takes_turns_with_gloo(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    options = ["--preset", "tiny", "--ranks", "3", "--ways", "Open MPI", "--json", str(file)]
    assert bench_collectives.main(options) == 0
    record = json.loads(file.read_text())
    assert "Open MPI" in record["conditions"]
    assert [list(found) for found in record["results"]["3"].values()] == [[GLOO.name, OPEN_MPI.name]] * 2


@pytest.mark.dist
def test_without_open_mpi_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_collectives, "find_mpirun", lambda: None)
    assert bench_collectives.main(["--preset", "tiny", "--ranks", "2", "--ways", "Open MPI"]) == 0
    assert f"To install both: {bench_collectives.INSTALL}" in capsys.readouterr().out
    assert bench_collectives.INSTALL in (bench_collectives.__doc__ or "")


def test_a_requirement_is_judged_where_it_is_met_least_by_ratios_of_rounds() -> None:
    def found(*ratios: float) -> Found:
        gloo = [1.0, 2.0, 9.0]
        return {GLOO.name: gloo, AREA: [seconds / ratio for seconds, ratio in zip(gloo, ratios, strict=True)]}

    (every_size,) = (each for each in REQUIREMENTS if each.ranks == 4)
    results = {4: {MB: found(7, 1, 8), 2 * MB: found(6, 5, 4)}, 2: {64 * MB: found(1, 1, 1)}}
    record = bench_collectives.judge(every_size, results)
    assert (record["found"], record["at"], record["way"], record["met"]) == (5, 2 * MB, AREA, True)
    results[4][3 * MB] = found(3.9, 3.9, 100)
    assert bench_collectives.judge(every_size, results)["met"] is False
    judged = {str(each): bench_collectives.judge(each, results)["met"] for each in REQUIREMENTS}
    assert judged["2 ranks, 64.0 MB: exchange area at least 8 x Gloo"] is False
    assert judged["2 ranks, 64.0 MB: exchange area at least 2 x Open MPI"] is None
    assert judged["2 ranks, 16.0 MB and more: sends over Gloo at least 0.95 x Gloo"] is None


@pytest.mark.parametrize(
    "options",
    [
        ["--ranks", "1"],
        ["--ranks", "2,x"],
        ["--sizes", "4"],
        ["--sizes", "0kB"],
        ["--sizes", "6B"],
        ["--rounds", "0"],
        ["--slice", "-1"],
        ["--slice", "nan"],
        ["--preset", "huge"],
        ["--ways", "NCCL"],
    ],
)
def test_wrong_options_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        bench_collectives.main(options)
    assert stopped.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_the_ways_have_names_of_their_own() -> None:
    assert len({way.name for way in WAYS}) == len(WAYS)
    assert {each.kind for each in REQUIREMENTS} <= {way.kind for way in WAYS}
