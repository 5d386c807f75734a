"""What `samegrad topology` prints: the links, what there is between any two devices, and rings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from samegrad.topology import LINK_TYPES, PRESETS, Kind, Link, RingPacking, Topology, ring_order
from samegrad.units import format_rate, format_seconds

__all__ = ["as_record", "list_presets", "show_topology"]

_MOST_IN_MATRIX = 16
_MOST_IN_ORDER = 64
_MOST_RINGS = 32


def list_presets() -> None:
    """The presets, a row each, and the types of links."""
    console = Console(highlight=False)
    table = _table("name", "what it is")
    for each in PRESETS:
        table.add_row(each.name, each.summary)
    console.print(table)
    console.print(
        "\nK, H, R are numbers of devices, hosts, racks; RATE is as 25Gb or 16GB. K may be the name of a machine.\n",
        soft_wrap=True,
    )
    table = _table("type of link", "used", "specified", "source")
    for kind in LINK_TYPES.values():
        table.add_row(kind.name, format_rate(kind.bandwidth), format_rate(kind.specified), kind.source)
    console.print(table)


def show_topology(topology: Topology, packing: RingPacking | None, picture: Path | None) -> None:
    """The links by type, the bandwidth between devices, the rings."""
    console = Console(highlight=False)
    console.print(Text(f"{topology.name}: {_count(len(topology.devices), 'device')}", style="bold"), soft_wrap=True)
    console.print()
    console.print(_links(topology))
    if 2 <= len(topology.devices) <= _MOST_IN_MATRIX:
        console.print()
        console.print("GB/s between devices, of the narrowest link on the way; in brackets where they have no link:")
        console.print(_matrix(topology))
    if packing is not None:
        console.print()
        _show_rings(console, topology, packing)
    if picture is not None:
        console.print(Text.assemble(("\npicture   ", "cyan"), str(picture)), soft_wrap=True)


def as_record(topology: Topology, packing: RingPacking | None) -> dict[str, Any]:
    """The topology as JSON has it: bytes/s and seconds, ranks in rings."""
    record: dict[str, Any] = {
        "name": topology.name,
        "devices": list(topology.devices),
        "hosts": list(topology.hosts),
        "nodes": [
            {"name": node.name, "kind": str(node.kind), "host": node.host, "add_rate": node.add_rate}
            for node in topology.nodes
        ],
        "links": [
            {
                "between": [link.a, link.b],
                "bandwidth": link.bandwidth,
                "latency": link.latency,
                "per_message": link.per_message,
                "kind": link.kind,
                "count": link.count,
            }
            for link in topology.links
        ],
    }
    if packing is not None:
        record["rings"] = {
            "bandwidth": packing.bandwidth,
            "bound": packing.bound,
            "direct": packing.direct,
            "rings": [{"order": list(ring.order), "bandwidth": ring.bandwidth} for ring in packing.rings],
            "best_order": list(ring_order(topology)),
        }
    return record


def _links(topology: Topology) -> Table:
    """A row for all links that are alike."""
    kinds = {node.name: node.kind for node in topology.nodes}

    def alike(link: Link) -> tuple[str, int, str, float, float]:
        ends = sorted((kinds[link.a], kinds[link.b]), key=list(Kind).index)
        return link.kind or "link", link.count, f"{ends[0]} - {ends[1]}", link.bandwidth, link.latency

    counts = Counter(alike(link) for link in topology.links)
    table = _table("links", "type", "between", "each direction", "latency")
    for (kind, lanes, ends, bandwidth, latency), count in counts.items():
        rate = format_rate(bandwidth) if lanes == 1 else f"{lanes} x {format_rate(bandwidth / lanes)}"
        table.add_row(str(count), kind, ends, rate, format_seconds(latency))
    return table


def _matrix(topology: Topology) -> Table:
    direct = {pair for a, b, _ in topology.device_links() for pair in ((a, b), (b, a))}
    table = _table("", *topology.devices, justify="right")
    for rank, a in enumerate(topology.devices):
        cells = []
        for other, b in enumerate(topology.devices):
            if rank == other:
                cells.append("-")
                continue
            width = min(topology.capacities[list(topology.route(a, b))]) / 1e9
            cells.append(f"{width:.3g}" if (rank, other) in direct else f"({width:.3g})")
        table.add_row(a, *cells)
    return table


def _show_rings(console: Console, topology: Topology, packing: RingPacking) -> None:
    if not packing.rings:
        console.print("rings: one device needs none")
        return
    ranks = len(topology.devices)
    where = "along links between devices" if packing.direct else "by way of switches"
    console.print(
        Text(
            f"{_count(len(packing.rings), 'ring')} {where}: {format_rate(packing.bandwidth)} in all, of at most "
            f"{format_rate(packing.bound)}",
            style="bold",
        ),
        soft_wrap=True,
    )
    for ring in packing.rings[:_MOST_RINGS]:
        order = "-".join(map(str, ring.order[:_MOST_IN_ORDER])) + ("-..." if ranks > _MOST_IN_ORDER else "")
        console.print(f"{format_rate(ring.bandwidth):>10}  {order}", soft_wrap=True)
    if len(packing.rings) > _MOST_RINGS:
        console.print(f"... and {len(packing.rings) - _MOST_RINGS} more; --json has all")
    console.print(
        f"An all-reduce of M bytes with all of them: 2 ({ranks} - 1)/{ranks} M / ({format_rate(packing.bandwidth)})",
        soft_wrap=True,
    )
    if ranks <= _MOST_IN_ORDER:
        console.print("To see it:", _command(packing, ranks), soft_wrap=True)


def _command(packing: RingPacking, ranks: int) -> str:
    """The command that draws these rings as a schedule."""
    rings = packing.one_way
    name = "rings" if len(rings) == len(packing.rings) else "two-way-rings"
    orders = " ".join(f"--order {','.join(map(str, ring.order))}" for ring in rings)
    speeds = packing.speeds(rings)
    given = f" --speeds {','.join(map(str, speeds))}" if len(set(speeds)) > 1 else ""
    return f"samegrad schedule {name} -n {ranks} {orders}{given}"


def _table(*headings: str, justify: Any = "left") -> Table:
    table = Table(box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, header_style="cyan", justify=justify if number else "left")
    return table


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
