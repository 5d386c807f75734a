"""What a person sees of an experiment: a bar while it runs, then title, table, what it shows, and conditions."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samegrad.bench import EXPERIMENTS, Experiment, Result
from samegrad.bench.drawing import write_plot
from samegrad.cli.measuring_bar import measuring_bar
from samegrad.output import check_plot

__all__ = ["list_experiments", "show_experiment"]


def list_experiments(experiments: Mapping[str, Experiment]) -> None:
    """Prints the names with what they are about."""
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 2))
    for name, experiment in experiments.items():
        table.add_row(Text(name, style="cyan"), experiment.summary)
    console.print(table)
    console.print("\nsamegrad bench NAME runs one, samegrad bench NAME --help tells its options.", style="dim")


def show_experiment(
    name: str, options: Mapping[str, Any], plot: Path | None, as_json: bool, command: Sequence[str]
) -> None:
    """Runs the experiment `name` with its own `options`; prints the result, as JSON on stdout if `as_json`.

    command: the words after `samegrad` that asked for it, which are part of the conditions.
    """
    if plot is not None:
        check_plot(plot)
    console = Console(stderr=as_json, highlight=False)
    result = _run(name, options)
    result = replace(result, conditions={"command": shlex.join(["samegrad", *command]), **result.conditions})
    if as_json:
        print(json.dumps({"experiment": name, **result.to_json()}))
    else:
        _print(console, result)
    if plot is not None:
        write_plot(result, plot)
        console.print(f"plot        {plot}", style="cyan", soft_wrap=True)


def _run(name: str, options: Mapping[str, Any]) -> Result:
    """The result of the experiment; there is a bar meanwhile, where there is a terminal."""
    with measuring_bar(f"bench {name}") as progress:
        return EXPERIMENTS[name].load()(progress, **options)


def _table(result: Result, is_bare: bool = False, folds: bool = False) -> Table:
    """is_bare: with less around the columns. folds: without it, nothing is broken but text between words."""
    table = Table(title=result.title, title_justify="left", title_style="bold")
    if is_bare:
        table.box, table.show_edge, table.pad_edge, table.padding = box.SIMPLE_HEAD, False, False, (0, 1, 0, 0)
    texts = result.texts()
    for place, (column, cells) in enumerate(zip(result.columns, zip(*result.rows, strict=True), strict=True)):
        numbers = all(cell is None or isinstance(cell, int | float) for cell in cells)
        shown = [row[place] for row in texts]
        parts = [*column.name.split(), *(shown if numbers else " ".join(shown).split())]
        width = None if folds else max(map(len, parts))
        table.add_column(column.name, justify="right" if numbers else "left", min_width=width, overflow="fold")
    for row in texts:
        table.add_row(*map(Text, row))
    return table


def _print(console: Console, result: Result) -> None:
    short = result.without_details()
    tables = [_table(result), _table(short), _table(short, is_bare=True), _table(short, is_bare=True, folds=True)]
    fitting = [table for table in tables if table.__rich_measure__(console, console.options).minimum <= console.width]
    console.print(fitting[0] if fitting else tables[-1])
    if fitting[:1] != tables[:1] and short.columns != result.columns:
        left_out = ", ".join(column.name for column in result.columns if column.is_detail)
        console.print(f"{left_out}: in a wider window, or with --json", style="dim")
    console.print()
    console.print(Text(result.shows, style="bold"))
    console.print()
    for condition, value in result.conditions.items():
        console.print(Text.assemble((f"{condition:<12}", "cyan"), str(value)), soft_wrap=True)
