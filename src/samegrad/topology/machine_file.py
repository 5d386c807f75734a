"""What `samegrad probe --out machine.json` measured, as a topology: of the GPUs if there are any, else of the cores.

    cores:  core0 ─┐                      GPUs:  gpu0 ─┐           gpu0 ─ gpu1, where a copy between the two
            core1 ─┤ memory ─ cpu0               gpu1 ─┤ root0 ─ cpu0    is faster than by way of root0
            core2 ─┘                             gpu2 ─┘

Cores read each other's memory: a core's link carries what one thread reads, or its part of what all threads read
together, if that is less. A GPU's link carries what the slower direction of a pinned copy does. Additions take the time
that was measured. Nothing in the file is believed.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from samegrad.errors import TopologyError
from samegrad.topology.graph import Kind, Link, Node, Topology

__all__ = ["from_machine", "is_machine"]

_FORMAT, _VERSION = "samegrad machine", 1
_MOST_CORES = 1024
_FASTER = 1.2  # than by way of the host, from which on two GPUs have a link of their own


def is_machine(text: str) -> bool:
    """Whether `text` looks like what `samegrad probe --out` writes."""
    return text.lstrip().startswith("{") and f'"{_FORMAT}"' in text


def from_machine(text: str, source: str = "machine") -> Topology:
    """The topology of the machine; it is named after `source`. Raises TopologyError, which says what is missing."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TopologyError(f"{source}: expected the JSON that samegrad probe --out writes: {error}") from error
    if not isinstance(record, dict) or record.get("format") != _FORMAT or record.get("version") != _VERSION:
        raise TopologyError(f"{source}: expected version {_VERSION} of what samegrad probe --out writes")
    measured = _Measured(record, source)
    gpus = sorted(int(match[1]) for name in measured.values if (match := re.fullmatch(r"gpu(\d+): memory", name)))
    return _of_gpus(measured, gpus) if gpus else _of_cores(measured)


class _Measured:
    """The medians of a record, by name of the row."""

    def __init__(self, record: dict[str, Any], source: str) -> None:
        self.source = source
        facts, rows = record.get("facts"), record.get("rows")
        self.facts: dict[str, Any] = facts if isinstance(facts, dict) else {}
        self.values: dict[str, float] = {}
        for row in rows if isinstance(rows, list) else []:
            value = row.get("value") if isinstance(row, dict) else None
            median = value.get("median") if isinstance(value, dict) else None
            if isinstance(median, int | float) and 0 < median < math.inf:
                self.values[str(row.get("name"))] = float(median)

    def __getitem__(self, name: str) -> float:
        if name not in self.values:
            raise TopologyError(
                f"{self.source}: there is no figure for {name!r}, which a topology needs; samegrad probe says in its "
                "row why it could not be measured"
            )
        return self.values[name]


def _of_cores(measured: _Measured) -> Topology:
    cores = measured.facts.get("cores usable")
    if not isinstance(cores, int) or not 1 <= cores <= _MOST_CORES:
        raise TopologyError(f"{measured.source}: facts: cores usable: expected 1 to {_MOST_CORES}; got {cores!r}")
    one = measured["sequential read, 1 thread"]
    rate = min(one, measured[f"sequential read, {cores} threads"] / cores) if cores > 1 else one
    add_rate, latency = measured["add gradients, 1 thread"], measured["memory, load"]
    nodes = [Node(f"core{number}", Kind.DEVICE, "host0", add_rate) for number in range(cores)]
    links = [Link(node.name, "memory", rate, latency, kind="memory") for node in nodes]
    nodes += [Node("memory", Kind.SWITCH, "host0"), Node("cpu0", Kind.HOST, "host0", add_rate)]
    links.append(Link("cpu0", "memory", rate, latency, kind="memory"))
    return Topology(measured.source, tuple(nodes), tuple(links))


def _of_gpus(measured: _Measured, gpus: list[int]) -> Topology:
    nodes = [
        Node(f"gpu{number}", Kind.DEVICE, "host0", measured[f"gpu{number}: memory"] * 2 / 3)  # 3 passes, 2 measured
        for number in gpus
    ]
    rates = {
        number: min(measured[f"gpu{number}: copy {way}, pinned"] for way in ("to the GPU", "from the GPU"))
        for number in gpus
    }
    wait = {number: measured[f"gpu{number}: launch a kernel and wait for it"] for number in gpus}
    links = [Link(f"gpu{number}", "root0", rates[number], wait[number], kind="to the host") for number in gpus]
    for a in gpus:
        for b in (other for other in gpus if other > a):
            rate = min(measured[f"gpu{a} to gpu{b}: copy"], measured[f"gpu{b} to gpu{a}: copy"])
            if rate > _FASTER * min(rates[a], rates[b]):
                links.append(Link(f"gpu{a}", f"gpu{b}", rate, max(wait[a], wait[b]), kind="between GPUs"))
    nodes += [
        Node("root0", Kind.SWITCH, "host0"),
        Node("cpu0", Kind.HOST, "host0", measured["add gradients, 1 thread"]),
    ]
    links.append(Link("cpu0", "root0", measured["sequential read, 1 thread"], kind="memory"))
    return Topology(measured.source, tuple(nodes), tuple(links))
