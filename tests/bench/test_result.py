"""What an experiment returns, and the rules that all experiments keep."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samegrad.bench import EXPERIMENTS, Cell, Column, Result
from samegrad.bench.conditions import conditions
from samegrad.bench.drawing import write_plot
from samegrad.errors import ConfigurationError, OutputError
from samegrad.output import check_plot
from samegrad.units import format_seconds


def result(*rows: tuple[Cell, ...]) -> Result:
    def draw(figure: Any) -> None:
        figure.subplots().plot([1, 2])

    columns = (Column("way"), Column("time", format_seconds), Column("loss"))
    return Result("Ways", {"threads": 1, "spread": float("nan")}, columns, rows, "It shows.", draw)


def test_people_read_units_and_machines_read_numbers() -> None:
    found = result(("a", 0.25, 1.5), ("b", None, float("inf")))
    assert found.texts() == [["a", "250 ms", "1.5"], ["b", "–", "inf"]]
    assert json.loads(json.dumps(found.to_json(), allow_nan=False)) == {
        "title": "Ways",
        "conditions": {"threads": 1, "spread": None},
        "rows": [{"way": "a", "time": 0.25, "loss": 1.5}, {"way": "b", "time": None, "loss": None}],
        "shows": "It shows.",
    }


def test_a_row_has_a_value_for_each_column() -> None:
    with pytest.raises(AssertionError, match="2 values for 3 columns"):
        result(("a", 0.25))


@pytest.mark.parametrize("name", ["a.png", "b.svg", "c.PDF", "new/folder/a.png"])
def test_the_plot_is_a_file_of_the_kind_that_its_name_says(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    check_plot(path)
    write_plot(result(), path)
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[path.suffix.lower()]
    assert path.read_bytes().startswith(start)


def test_a_plot_that_cannot_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--plot a\.jpg: expected a picture, which ends in \.png"):
        check_plot(Path("a.jpg"))
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder.png").mkdir()
    for path in (tmp_path / "file" / "a.png", tmp_path / "folder.png"):
        with pytest.raises(OutputError, match="cannot be written"):
            check_plot(path)


def test_conditions_name_machine_versions_and_what_else_is_given() -> None:
    found = conditions(threads=2, repetitions=3, seed=7)
    assert {"machine", "torch", "python"} < set(found)
    assert (found["threads"], found["repetitions"], found["seed"]) == (2, 3, 7)


def test_every_experiment_is_found_and_says_in_a_line_what_it_is_about() -> None:
    for experiment in EXPERIMENTS.values():
        assert callable(experiment.load())
        assert 20 < len(experiment.summary) < 100
        assert "\n" not in experiment.summary


def test_the_table_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import samegrad.bench, samegrad.bench.drawing"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
