"""`samegrad simulate`: how long each way of adding gradients up takes on a topology."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samegrad.cli.train import Debug
from samegrad.errors import ConfigurationError

__all__ = ["HELP", "simulate"]

HELP = (
    "Say how long each way of adding gradients up takes, on devices and links that you need not have.\n\n"
    "All that fit are laid out for the topology, simulated message by message, and listed, fastest first.\n\n"
    "Example: samegrad simulate --topology pcie-switch-4 --bytes 160MB"
)


def simulate(
    topology: Annotated[
        str,
        typer.Option(help="A file, or the name of a machine or cluster; see samegrad topology --list.", metavar="WHAT"),
    ],
    nbytes: Annotated[
        str, typer.Option("--bytes", help="Bytes of the gradients, as 160MB, 64MiB or 4096.", metavar="SIZE")
    ],
    algorithm: Annotated[
        list[str] | None,
        typer.Option(help="Only this one; several times for several. See samegrad schedule --list.", metavar="NAME"),
    ] = None,
    pieces: Annotated[int, typer.Option(help="Cut the buffer into pieces that follow each other.")] = 1,
    barriers: Annotated[
        bool, typer.Option("--barriers", help="Every round waits for all of the round before.", metavar="")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw time against bytes and number of devices to this file: .png, .svg or .pdf.", metavar="FILE"
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write the timeline of the fastest to this file, for ui.perfetto.dev.", metavar="FILE"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line, a list of records; nothing else.", metavar="")
    ] = False,
    debug: Debug = False,
) -> None:
    from samegrad.cli.simulate_display import record_of, show_survey, write_trace
    from samegrad.output import check_plot
    from samegrad.simulator.plot import draw_times
    from samegrad.simulator.survey import simulate_all
    from samegrad.topology import find
    from samegrad.units import parse_bytes

    try:
        size = parse_bytes(nbytes)
    except ValueError as error:
        raise ConfigurationError(f"--bytes: {error}") from None
    if not 1 <= size <= 1e18:
        raise ConfigurationError(f"--bytes: expected 1 byte or more, and not an absurd number of them; got {nbytes}")
    if plot is not None:
        check_plot(plot)
    found = find(topology)
    result = simulate_all(found, size, algorithm or None, barriers=barriers, pieces=pieces)
    if plot is not None:
        draw_times([candidate for candidate, _ in result.found], found, size, barriers, pieces, plot)
    if trace is not None:
        write_trace(result, trace)
    if as_json:
        import json

        print(json.dumps([record_of(*pair) for pair in result.found]))
    else:
        show_survey(result, found, size, [path for path in (plot, trace) if path is not None])
