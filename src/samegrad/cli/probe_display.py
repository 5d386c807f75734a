"""What a person sees of `samegrad probe`: a bar while it runs, then one table and the facts of the machine."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from samegrad.cli.measuring_bar import measuring_bar
from samegrad.errors import ConfigurationError, OutputError
from samegrad.output import check_output, check_plot, write_output
from samegrad.probing import Machine, Row, probe, reference_of
from samegrad.units import format_bytes, format_count, format_rate, format_seconds

__all__ = ["answer_others", "show_probe"]


def _operations(rate: float) -> str:
    return format_bytes(rate).replace("B", "FLOP/s") if rate < 1e15 else f"{rate:.2e} FLOP/s"


_SHOW: Mapping[str, Callable[[float], str]] = {
    "s": format_seconds,
    "B/s": format_rate,
    "B": format_bytes,
    "FLOP/s": _operations,
}


def show_probe(
    effort: str,
    path: Path | None,
    address: str | None,
    outputs: tuple[Path | None, Path | None],
    as_json: bool,
) -> None:
    """Measures and prints; `outputs` are the files for JSON and for the picture. Raises OutputError beforehand."""
    out, plot = outputs
    if plot is not None:
        check_plot(plot)
    if out is not None:
        check_output("--out", out)
    with measuring_bar("probe") as progress:
        machine = probe(effort, path, address, progress)
    record = json.dumps(machine.to_json(), allow_nan=False)
    console = Console(stderr=as_json, highlight=False)
    if as_json:
        print(record)
    else:
        _print(console, machine)
    if out is not None:
        write_output(out, f"{record}\n".encode())
        console.print(f"written     {out}", style="cyan", soft_wrap=True)
    if plot is not None:
        from samegrad.probing.picture import draw

        draw(machine, plot)
        console.print(f"plot        {plot}", style="cyan", soft_wrap=True)


def answer_others(where: str) -> None:
    """Answers on the address `where` until Ctrl-C. Raises OutputError if it cannot listen there."""
    from samegrad.probing.network import split_address
    from samegrad.probing.wire import Listener

    try:
        host, port = split_address(where)
    except ConfigurationError as error:
        raise ConfigurationError(f"--listen: {error}") from None
    try:
        listener = Listener(host, port)
    except OSError as error:
        raise OutputError(
            f"--listen {where}: {error.strerror or error}. Name an address of this machine and a port that is free"
        ) from error
    print(f"listening on {host} port {listener.port}, TCP and UDP; Ctrl-C ends it", file=sys.stderr, flush=True)
    listener.serve(lambda: False)


def _print(console: Console, machine: Machine) -> None:
    table = Table(title="This machine beside well-known figures", title_justify="left", title_style="bold")
    table.add_column("action", overflow="fold")
    for heading in ("here", "spread", "reference", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    sources: dict[str, int] = {}
    for group, rows in itertools.groupby(machine.rows, lambda row: row.group):
        measured = list(rows)
        common = {row.note or row.problem for row in measured}
        said = common.pop() if len(common) == 1 else ""
        table.add_section()
        table.add_row(Text.assemble((group, "bold"), (f"\n{said}" if said else "", "dim")))
        for row in measured:
            if row.name != group:  # which says why there is nothing else
                _add(table, row, row.problem or ("" if said else row.note), sources)
    console.print(table)
    console.print(
        "median of the repetitions; spread: how far they are from it; ratio: here / reference, for times less is better"
    )
    for source, number in sources.items():
        console.print(Text(f"[{number}] {source}"), soft_wrap=True)
    console.print()
    for name, fact in machine.facts.items():
        value = format_bytes(fact) if name.startswith("memory") else fact
        value = f"{fact / 1e9:.2f} GHz" if name == "frequency" else value
        console.print(Text.assemble((f"{name:<17}", "cyan"), str(value)), soft_wrap=True)
    console.print(Text.assemble(("effort           ", "cyan"), f"{machine.effort}, {format_seconds(machine.seconds)}"))


def _add(table: Table, row: Row, below: str, sources: dict[str, int]) -> None:
    """Adds a row, with `below` in a line of its own; what figures are from gets numbers as it comes."""
    action = Text.assemble(row.name, (f"\n  {below}" if below else "", "dim"))
    if row.value is None:
        table.add_row(action, "–")
        return
    show, value = _SHOW[row.unit], row.value
    most = max(value.highest - value.median, value.median - value.lowest) / value.median if value.median else 0.0
    cells = [show(value.median), f"± {100 * most:.0f} %" if value.repetitions > 1 else ""]
    reference = reference_of(row.name)
    if reference is not None:
        source = f"{reference.source}, {reference.year}{reference.what and f': {reference.what}'}"
        ratio = value.median / reference.value
        cells.append(f"{show(reference.value)} [{sources.setdefault(source, len(sources) + 1)}]")
        cells.append(f"{ratio:.2f}" if ratio < 100 else format_count(ratio))
    table.add_row(action, *map(Text, cells))
