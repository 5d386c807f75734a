"""`samegrad export`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samegrad.cli.train import Debug

__all__ = ["HELP", "export"]

HELP = (
    "Write the model of a checkpoint as one file that runs without its class.\n\n"
    "In Python: samegrad.load_exported('model.pt2')(images), for any number of images. "
    "A program runs wherever this version of torch does; a package is compiled for this kind of machine.\n\n"
    "Example: samegrad export runs/quickstart --out digits.pt2"
)


def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="The folder of a run of samegrad train (its newest checkpoint), or a file of a checkpoint.",
            metavar="CHECKPOINT",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write; its name ends in .pt2.", metavar="FILE")] = Path(
        "model.pt2"
    ),
    package: Annotated[
        bool,
        typer.Option(
            "--package",
            help="Compile it by AOTInductor for this kind of machine, in tens of seconds.",
            metavar="",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as one line of JSON on stdout.", metavar="")
    ] = False,
    debug: Debug = False,
) -> None:
    """Exports the model of a checkpoint, and says what it wrote."""
    from samegrad.cli.export_display import show_export

    show_export(checkpoint, out, "package" if package else "program", as_json)
