"""`samegrad bench`: the list of experiments, and how a result is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from samegrad.bench import EXPERIMENTS, Column, Result
from samegrad.bench.result import Cell
from samegrad.cli import bench_display, main
from samegrad.cli.app import app
from samegrad.cli.bench_display import show_experiment
from samegrad.errors import ConfigurationError


class Counting:
    """An experiment that shows what it is given."""

    summary = "Counts to a number that is given."

    def load(self) -> Callable[..., Result]:
        def draw(figure: Any) -> None:
            figure.subplots()

        def run(progress: Any, upto: int) -> Result:
            progress("counting", 0.5)
            rows = [(number, number / upto) for number in range(1, upto + 1)]
            columns = (Column("number"), Column("share", lambda share: f"{100 * share:.0f} %"))
            shows = f"One can count to {rows[-1][0]}."
            return Result("Counting", {"threads": 1}, columns, rows, shows, draw)

        return run


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_display, "EXPERIMENTS", {"count": Counting()})


def test_every_experiment_has_its_command_and_every_command_its_experiment() -> None:
    commands: Any = typer.main.get_command(app)
    group = commands.commands["bench"].commands
    assert list(group) == list(EXPERIMENTS)
    for name, command in group.items():
        options = [option for parameter in command.params for option in parameter.opts]
        assert options[-3:] == ["--plot", "--json", "--debug"], name
        assert all(len(parameter.help) > 20 and parameter.help.endswith(".") for parameter in command.params), name
        assert command.help.startswith(EXPERIMENTS[name].summary), name


def test_without_a_name_the_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as info:
        main(["bench"])
    assert info.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in EXPERIMENTS)
    assert "samegrad bench NAME --help" in out


def test_an_experiment_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as info:
        main(["bench", "presicion"])
    assert info.value.code == 2
    assert "No such command 'presicion'" in capsys.readouterr().err


def test_people_get_table_sentence_and_conditions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot = tmp_path / "a plot.png"
    show_experiment("count", {"upto": 3}, plot, as_json=False, command=["bench", "count", "--plot", str(plot)])
    out, err = capsys.readouterr()
    assert err == ""
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == "Counting"
    assert any("3" in line and "100 %" in line for line in lines)
    assert "One can count to 3." in lines
    assert f"command     samegrad bench count --plot '{plot}'" in lines
    assert "threads     1" in lines
    assert plot.exists()


def test_machines_get_one_line_of_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    show_experiment("count", {"upto": 2}, tmp_path / "a.svg", as_json=True, command=["bench", "count", "--json"])
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert out.count("\n") == 1
    assert record["experiment"] == "count"
    assert record["conditions"] == {"command": "samegrad bench count --json", "threads": 1}
    assert record["rows"] == [{"number": 1, "share": 0.5}, {"number": 2, "share": 1.0}]
    assert "a.svg" in err


def test_a_plot_that_cannot_be_written_is_found_before_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "load", lambda _: pytest.fail("it was run"))
    with pytest.raises(ConfigurationError, match="expected a picture, which ends in"):
        show_experiment("count", {}, Path("a.txt"), as_json=False, command=[])


@pytest.mark.parametrize(("width", "is_whole", "details"), [(60, True, True), (40, True, False), (20, False, False)])
def test_a_narrow_terminal_leaves_out_details_before_it_breaks_words(
    width: int, is_whole: bool, details: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [Column("way"), Column("time", lambda value: f"{value:g} seconds"), Column("lowest", str, is_detail=True)]
    rows: list[list[Cell]] = [["torch.jit.script", 1.5, 123456789], ["something else", None, 1]]
    found = Result("Ways", {}, columns, rows, "It shows.", lambda _: None)
    monkeypatch.setattr(Counting, "load", lambda _: lambda _: found)
    monkeypatch.setenv("COLUMNS", str(width))
    show_experiment("count", {}, None, as_json=False, command=[])
    out = capsys.readouterr().out
    assert all(len(line) <= width for line in out.splitlines())
    assert ("torch.jit.script" in out, "1.5 seconds" in out) == (is_whole, is_whole)
    assert ("123456789" in out, "with --json" in " ".join(out.split())) == (details, not details)
