"""What a person sees of runs: a list of facts for one, a table for several, and what they have in common."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from samegrad.errors import OutputError
from samegrad.output import check_plot
from samegrad.runs import Comparison, Run, draw_runs, read_run, write_page
from samegrad.runs.comparison import FACTS
from samegrad.runs.texts import count_text, fact_text, loss_text, percent_text, seconds_text, state_text, step_text

__all__ = ["show_runs"]

_WIDE = 250  # columns, where the output is no terminal


def show_runs(folders: Sequence[str], plot: Path | None, html: Path | None, as_json: bool) -> int:
    """Shows the runs in `folders`, and writes plot and page if wanted; those that are no runs are named on stderr.

    Returns the exit code.
    """
    if plot is not None:
        check_plot(plot)
    runs, missing = _read(folders)
    if as_json:
        print(json.dumps([{**run.summary(), "metrics": list(run.epochs)} for run in runs]))
    elif runs:
        _print(runs)
    for note in (note for run in runs for note in run.notes):
        print(f"note: {note}", file=sys.stderr)
    for error in missing:
        print(f"error: {error}", file=sys.stderr)
    written = []
    if plot is not None and runs:
        draw_runs(runs, plot)
        written.append(f"plot         {plot}")
    if html is not None and runs:
        write_page(runs, html)
        written.append(f"page         {html}")
    for line in written:
        print(line, file=sys.stderr if as_json else sys.stdout)
    return 1 if missing else 0


def _read(folders: Sequence[str]) -> tuple[list[Run], list[OutputError]]:
    runs, missing = [], []
    for folder in dict.fromkeys(folders):
        try:
            runs.append(read_run(folder))
        except OutputError as error:
            missing.append(error)
    return runs, missing


def _print(runs: Sequence[Run]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _WIDE)
    if len(runs) == 1:
        _print_one(console, runs[0])
        return
    comparison = Comparison(runs)
    table = Table(box=None, pad_edge=False, header_style="cyan", padding=(0, 2, 0, 0))
    table.add_column("run", overflow="fold")
    for name in comparison.differing:
        table.add_column(FACTS[name], overflow="fold")
    for heading in ("epochs", "train loss", "test acc", "best", "per epoch", "samples/s"):
        table.add_column(heading, justify="right")
    table.add_column("fingerprint")
    table.add_column("state", overflow="fold")
    for run in runs:
        table.add_row(
            Text(run.folder),
            *(Text(fact_text(run.facts, name) or "–") for name in comparison.differing),
            str(run.epochs_done),
            *_figures(run),
            Text((run.fingerprint or "–")[:8], style="green" if run.fingerprint else ""),
            Text(state_text(run)),
        )
    console.print(table)
    console.print()
    if comparison.common:
        facts = ", ".join(f"{FACTS[name]} {value}" for name, value in comparison.common.items())
        console.print(Text.assemble(("all          ", "cyan"), facts), soft_wrap=True)
    for finding in comparison.findings():
        console.print(Text(finding, style="bold"), soft_wrap=True)


def _figures(run: Run) -> list[str]:
    return [
        loss_text(run.last("train_loss")),
        percent_text(run.last("test_accuracy")),
        percent_text(run.best_accuracy),
        seconds_text(run.seconds_per_epoch),
        count_text(run.samples_per_second),
    ]


def _print_one(console: Console, run: Run) -> None:
    train_loss, accuracy, best, seconds, samples = _figures(run)
    facts = {FACTS[name]: fact_text(run.facts, name) for name in FACTS}
    figures = {
        "strategy": ": ".join(filter(None, (fact_text(run.facts, name) for name in ("strategy", "strategy_reason")))),
        "step": step_text(run.facts),
        "epochs": str(run.epochs_done),
        "train loss": train_loss,
        "test loss": loss_text(run.last("test_loss")),
        "accuracy": f"{accuracy} (best {best})",
        "speed": f"{seconds} per epoch, {samples} samples/s",
        "fingerprint": run.fingerprint or "",
    }
    for label, text in {"run": run.folder, "state": state_text(run), **facts, **figures}.items():
        if text:
            console.print(Text.assemble((f"{label:<13}", "cyan"), text), soft_wrap=True)
