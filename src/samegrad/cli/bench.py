"""`samegrad bench`: lists the experiments, or runs one of them. The command of an experiment has its own options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samegrad.bench import EXPERIMENTS

__all__ = ["bench"]

_HELP = (
    "Show what training does, with figures measured on this machine.\n\n"
    "Each experiment prints a table, the conditions it was measured under, and what it shows. Without the name of an "
    "experiment they are listed."
)

bench = typer.Typer(help=_HELP, rich_markup_mode="rich")

Plot = Annotated[Path | None, typer.Option(help="Draw the figures to this file: .png, .svg or .pdf.", metavar="FILE")]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the result as one line of JSON on stdout, and everything else on stderr.", metavar=""
    ),
]


@bench.callback(invoke_without_command=True)
def _list(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        from samegrad.cli.bench_display import list_experiments

        list_experiments(EXPERIMENTS)


def _run(context: typer.Context, plot: Path | None, as_json: bool, **options: Any) -> None:
    """Runs the experiment that the command is named after, with its own `options`, and shows the result."""
    from samegrad.cli.bench_display import show_experiment

    show_experiment(str(context.info_name), options, plot, as_json, command=context.obj)
