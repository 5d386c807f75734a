"""`samegrad probe`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samegrad.cli.train import Debug
from samegrad.errors import ConfigurationError

__all__ = ["HELP", "probe"]

HELP = (
    "Measure this machine: memory, storage, network, processes, arithmetic and GPUs, beside well-known figures.\n\n"
    "It takes less than a minute; nothing else should run meanwhile. What cannot be measured says why in its row. "
    "Nothing is left behind.\n\n"
    "Example: samegrad probe --out machine.json --plot machine.png"
)


def probe(
    quick: Annotated[bool, typer.Option("--quick", help="Measure less, in about 10 s.", metavar="")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Measure more sizes, more often, in some minutes.", metavar="")
    ] = False,
    path: Annotated[
        Path | None,
        typer.Option(
            help="A folder on the storage to measure. Default: where temporary files are made.", metavar="DIR"
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Measure the network to this machine, where samegrad probe --listen runs; else to this one itself.",
            metavar="HOST[:PORT]",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="Measure nothing; answer the --address of others here, as 0.0.0.0:4199, until Ctrl-C.",
            metavar="HOST[:PORT]",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write all figures, as JSON, to this file.", metavar="FILE")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw latency and bandwidths to this file: .png, .svg or .pdf.", metavar="FILE"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all figures as one line of JSON on stdout.", metavar="")
    ] = False,
    debug: Debug = False,
) -> None:
    """Measures, or answers others who measure."""
    from samegrad.cli.probe_display import answer_others, show_probe

    if quick and full:
        raise ConfigurationError("--quick and --full: give one of them")
    if listen is not None:
        if quick or full or address is not None or path is not None or out is not None or plot is not None or as_json:
            raise ConfigurationError("--listen only answers others: give no other option beside it")
        answer_others(listen)
        return
    show_probe("quick" if quick else "full" if full else "default", path, address, (out, plot), as_json)
