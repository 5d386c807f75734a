"""What `samegrad simulate` prints and writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from samegrad.output import write_output
from samegrad.simulator.simulation import Simulation
from samegrad.simulator.survey import Candidate, Survey
from samegrad.topology import Topology
from samegrad.units import format_bytes, format_rate, format_seconds

__all__ = ["record_of", "show_survey", "write_trace"]


def record_of(candidate: Candidate, simulation: Simulation) -> dict[str, Any]:
    """One line of the table, for machines: seconds, bytes, bytes/s."""
    return {
        **simulation.to_json(),
        "algorithm": candidate.algorithm.name,
        "follows_tree": candidate.algorithm.follows_tree,
    }


def show_survey(survey: Survey, topology: Topology, nbytes: float, written: Sequence[Path]) -> None:
    """A row for each algorithm, and why others are left out."""
    console = Console(highlight=False)
    devices = len(topology.devices)
    barriers = any(simulation.barriers for _, simulation in survey.found)
    title = f"all-reduce of {format_bytes(nbytes)} over {devices} device{'s' * (devices != 1)} of {topology.name}"
    console.print(Text(title + (", with barriers" if barriers else ""), style="bold"), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for heading in ("algorithm", "time", "algbw", "busbw", "busiest link", "busy", "same bits"):
        number = heading in ("time", "algbw", "busbw", "busy")
        table.add_column(heading, header_style="cyan", justify="right" if number else "left", no_wrap=True)
    for candidate, simulation in survey.found:
        timed = simulation.seconds > 0
        table.add_row(
            candidate.algorithm.name,
            format_seconds(simulation.seconds),
            format_rate(simulation.algorithm_bandwidth) if timed else "",
            format_rate(simulation.bus_bandwidth) if timed else "",
            Text(simulation.busiest_link),
            f"{simulation.utilization:.0%}" if timed else "",
            "yes" if candidate.algorithm.follows_tree else "no",
        )
    console.width = max(console.width, console.measure(table, options=console.options.update(width=200)).maximum)
    console.print(table)
    for name, reason in survey.left_out.items():
        console.print(Text.assemble((f"{name} left out: ", "cyan"), reason), soft_wrap=True)
    legend = "busy: part of the time. same bits: whether the sum has them for any number of devices"
    console.print(Text(legend, style="dim"), soft_wrap=True)
    for path in written:
        console.print(Text.assemble(("written   ", "cyan"), str(path)), soft_wrap=True)


def write_trace(survey: Survey, path: Path) -> None:
    """The timeline of the fastest. Raises OutputError."""
    _, simulation = survey.found[0]
    write_output(path, json.dumps(simulation.trace()).encode())
