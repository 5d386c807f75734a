"""`samegrad show`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["HELP", "show"]

HELP = (
    "Show one run, or several beside each other: what they were made with, how far they are, and their results.\n\n"
    "A run is the folder that samegrad train --out writes; it may be finished, stopped, or still running. Runs with "
    "equal fingerprints have the same result, bit for bit.\n\n"
    "Example: samegrad show runs/one runs/two --plot runs.png"
)


def show(
    folders: Annotated[list[str], typer.Argument(metavar="DIR...", help="The folders of the runs.")],
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw loss and accuracy of the runs by epoch to this file: .png, .svg or .pdf.", metavar="FILE"
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write the runs as one page to this file: curves, tables and how to get them again.", metavar="FILE"
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the runs as one line of JSON on stdout, with all epochs.", metavar=""),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", metavar="")] = False,
) -> None:
    """Shows the runs in `folders`; exit code 1 if one of these is none."""
    from samegrad.cli.show_display import show_runs

    raise typer.Exit(show_runs(folders, plot, html, as_json))
