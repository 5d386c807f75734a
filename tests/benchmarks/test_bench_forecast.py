"""The benchmark of predictions runs, on sizes that mean nothing, and judges by what it has measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_forecast


@pytest.mark.slow
@pytest.mark.dist
def test_the_tiny_preset_compares_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    assert bench_forecast.main(["--preset", "tiny", "--ranks", "2", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    record = json.loads(file.read_text())
    assert printed.splitlines()[0] == record["conditions"]
    exchanges, steps = record["exchanges"], record["steps"]
    assert {row["case"] for row in exchanges} == {"4.00 kB, private", "4.00 kB, area"}
    assert {"one-shot", "sharded", "one-device"} <= {row["way"] for row in exchanges}
    assert {row["case"] for row in steps} == {"lenet, batch 16, replicated", "lenet, batch 16, owner"}
    assert all(row["predicted"] > 0 and row["measured"] > 0 for row in (*exchanges, *steps))
    assert sum(row["chosen"] for row in exchanges) == sum(row["chosen"] for row in steps) == 1
    assert printed.count("predictions: median error") == 2
    assert printed.count("1 choices: ") == 2


def test_errors_are_relative_and_the_regret_is_that_of_the_choice() -> None:
    def row(way: str, predicted: float, measured: float, chosen: bool, case: str = "a") -> dict[str, Any]:
        return {"ranks": 2, "case": case, "way": way, "predicted": predicted, "measured": measured, "chosen": chosen}

    rows = [row("x", 1.0, 1.1, True), row("y", 1.2, 1.0, False), row("x", 2.0, 4.0, False, "b")]
    assert bench_forecast.errors(rows) == pytest.approx([1 - 1 / 1.1, 0.2, 0.5])
    assert bench_forecast.regrets(rows) == {(2, "a"): pytest.approx(0.1)}


def test_rounds_come_to_their_medians_and_to_what_most_have_chosen() -> None:
    def row(way: str, predicted: float, chosen: bool) -> dict[str, Any]:
        return {"ranks": 2, "case": "a", "way": way, "predicted": predicted, "measured": 1.0, "chosen": chosen}

    rounds = [[row("x", 1.0, True), row("y", 5.0, False)], [row("x", 3.0, True)], [row("x", 2.0, False)]]
    assert bench_forecast.merged(rounds) == [row("x", 2.0, True), row("y", 5.0, False)]
