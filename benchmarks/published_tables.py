"""How well the simulator predicts all-reduces that others measured: tables of nccl-tests, as they were published.

    python benchmarks/published_tables.py DIR                    # a table for people; minutes
    python benchmarks/published_tables.py DIR --json found.json --plot times.png

DIR holds outputs of all_reduce_perf as NAME.txt, each with two lines before it that say what it was run on:

    ## hardware: 2x AWS p5.48xlarge (8x H100, 32x100G EFA)
    ## ranks: 16 on 2 node(s)

Tables with at least 8 sizes are looked at. Two constants are fitted to every second size, and judged by the others:

    latency   times what a message, and a call, takes by NCCL's own table of latencies
    rate      times what links carry (samegrad.topology.link_types)

A prediction is simulated: the fastest of NCCL's three protocols with rings, with trees, or with the faster of both. A
table does not say which of these it was; what fits best to the sizes that are fitted is taken. The fit minimises the
squares of log(predicted / measured), with rates up to what links are specified for. Times are those out of place.

A table is out of the model where switches have added: where the NVLinks of the devices would have had to carry more
than they do. Each device has to send 2 (n - 1)/n bytes for each byte of the buffer, on average, if only devices add.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brute

from samegrad.errors import DataCorrupt, DataMissing, SamegradError
from samegrad.simulator import Candidate
from samegrad.simulator.nccl_tests import MeasuredTable, load_nccl_tests
from samegrad.simulator.survey import laid_out
from samegrad.topology import Topology
from samegrad.topology.clusters import INFINIBAND, cluster
from samegrad.topology.graph import Link
from samegrad.topology.link_types import LINK_TYPES
from samegrad.topology.machines import dgx_a100
from samegrad.units import format_bytes, format_rate

__all__ = ["PROTOCOLS", "WAYS", "Found", "Machine", "Model", "Protocol", "judge", "machine_of", "main"]

LEAST_SIZES = 8
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Protocol:
    """How NCCL moves data. Seconds of a call, of a message over NVLink, of one over the network; part of the rate."""

    name: str
    call: float
    nvlink: float
    network: float
    rate: float


PROTOCOLS = (
    Protocol("LL", 6.6e-6, 0.6e-6, 2.7e-6, 1 / 4),
    Protocol("LL128", 14.0e-6, 1.9e-6, 4.0e-6, 0.92),
    Protocol("Simple", 8.4e-6, 3.4e-6, 14.0e-6, 1.0),
)
"""baseLat, hwLat and bandwidths of rings in src/graph/tuning.cc of https://github.com/NVIDIA/nccl (commit b6475625).
Those of trees include the time of a chunk's bytes, which is simulated here."""

_TREES = (("double-binary-tree", 8), ("hierarchical", 1), ("hierarchical", 8))
WAYS = {"rings": (("rings", 1),), "trees": _TREES, "either": (("rings", 1), *_TREES)}
"""What NCCL may have used: algorithms, each with the number of pieces that follow each other; NCCL's buffers have 8
places, too. `hierarchical` stands for its trees between hosts, of which each device is the root of its own."""


@dataclass(frozen=True, slots=True)
class Machine:
    """name: what people call it. topology: of the devices that took part."""

    name: str
    topology: Topology


def _p4de(hosts: int) -> Topology:
    """A dgx-a100 with four network cards of 100 Gb/s, one for two devices."""
    box = dgx_a100()
    box = _without(box, {f"nic{number}" for number in (1, 3, 5, 7)})
    return cluster(box, hosts, 100e9 / 8, INFINIBAND) if hosts > 1 else box


def _h100(hosts: int) -> Topology:
    """dgx-h100 with 400 Gb/s for each device: a card of InfiniBand, or four of the 32 cards of 100 Gb/s of a p5."""
    return Topology.preset(f"ib-{hosts}xdgx-h100@400Gb" if hosts > 1 else "dgx-h100")


MACHINES: dict[str, Callable[[int], Topology]] = {"p4de.24xlarge": _p4de, "p5.48xlarge": _h100, "H100 HGX": _h100}
"""Words of the line "## hardware:", and what makes a number of such hosts."""


def machine_of(text: str) -> Machine | None:
    """What the lines at the head of a file say it was run on; None if they do not, or name no machine of the table."""
    hardware = re.search(r"^## hardware: (.*)$", text, re.MULTILINE)
    ranks = re.search(r"^## ranks: ([1-9]\d*) on ([1-9]\d*) node", text, re.MULTILINE)
    name = next((name for name in MACHINES if hardware and name in hardware[1]), None)
    if name is None or ranks is None:
        return None
    devices, hosts = int(ranks[1]), int(ranks[2])
    whole = MACHINES[name](hosts)
    used = devices // hosts
    own: dict[str, list[str]] = {}
    for device in whole.devices:
        own.setdefault(whole.node(device).host, []).append(device)
    unused = {device for each in own.values() for device in each[used:]}
    part = "" if not unused else f", {used} GPU{'s' * (used > 1)} each"
    return Machine(f"{hosts} {name}{part}", _without(whole, unused))


def _without(topology: Topology, names: set[str]) -> Topology:
    nodes = tuple(node for node in topology.nodes if node.name not in names)
    links = tuple(link for link in topology.links if link.a not in names and link.b not in names)
    return replace(topology, nodes=nodes, links=links)


class Model:
    """Predicted times on a topology.

    Time is homogeneous: with all latencies s times as long and all rates e times as high, M bytes take s times what
    M / (s e) bytes take with s = e = 1. So one curve over bytes for each way and protocol serves to fit both, and as
    these curves are straight but for a few bends, a few points are enough. What is reported is simulated.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._nbytes = np.geomspace(1e2, 1e12, 15)
        self._ways: list[tuple[str, int, Candidate, Protocol]] = []
        self._curves: list[Floats] = []
        for name, pieces in WAYS["either"]:
            candidate = laid_out(name, topology, pieces)
            for protocol in PROTOCOLS:
                plain = self._slowed(protocol, 1.0, 1.0)
                times = [candidate.simulate(plain, float(nbytes)).seconds for nbytes in self._nbytes]
                self._ways.append((name, pieces, candidate, protocol))
                self._curves.append(protocol.call + np.array(times))

    def fit(self, nbytes: Floats, seconds: Floats) -> tuple[str, float, float]:
        """Which of `WAYS` fits best, and the factors of latencies and rates; no link may exceed its specification."""
        limit = min(_specified(link) / link.bandwidth for link in self._topology.links if _specified(link))
        found = []
        for ways in WAYS:

            def cost(logs: Floats, ways: str = ways) -> float:
                if logs[1] > np.log(limit):
                    return 1e9
                return float(np.sum(np.log(self._times(ways, nbytes, *np.exp(logs)).min(0) / seconds) ** 2))

            ranges = [(np.log(low), np.log(high)) for low, high in ((0.1, 50.0), (0.3, limit))]
            best = brute(cost, ranges, Ns=40)  # the best point of a grid, and a search from there
            found.append((cost(best), ways, *np.exp(best).tolist()))
        _, ways, latency, rate = min(found, key=lambda each: round(each[0], 4))  # the first of equals
        return ways, latency, rate

    def predict(self, ways: str, nbytes: Floats, latency: float, rate: float) -> Floats:
        """Seconds for each size."""
        seconds = []
        for number, size in zip(self._times(ways, nbytes, latency, rate).argmin(0), nbytes, strict=True):
            _, _, candidate, protocol = self._ways[number]
            found = candidate.simulate(self._slowed(protocol, latency, rate), float(size))
            seconds.append(latency * protocol.call + found.seconds)
        return np.array(seconds)

    def _times(self, ways: str, nbytes: Floats, latency: float, rate: float) -> Floats:
        """As the curves have it: a row for each way and protocol, infinite if it is not one of `ways`."""
        scaled = nbytes / (latency * rate)
        times = np.full((len(self._curves), len(nbytes)), np.inf)
        for number, (name, pieces, _, _) in enumerate(self._ways):
            if (name, pieces) in WAYS[ways]:
                times[number] = latency * np.interp(scaled, self._nbytes, self._curves[number])
        return times

    def _slowed(self, protocol: Protocol, latency: float, rate: float) -> Topology:
        """Messages pass two links of NVLink, or two of the network."""
        links = []
        for link in self._topology.links:
            seconds = 0.0
            if link.kind.startswith("NVLink"):
                seconds = protocol.nvlink / 2
            elif _is_network(link):
                seconds = protocol.network / 2
            bandwidth = link.bandwidth * rate * protocol.rate
            links.append(replace(link, latency=seconds * latency, bandwidth=bandwidth))
        return replace(self._topology, links=tuple(links))


def _is_network(link: Link) -> bool:
    return link.kind.startswith(INFINIBAND.name)


def _specified(link: Link) -> float:
    """bytes/s of NVLinks, and of the network, by their specification; 0 for others, which are not what limits."""
    if _is_network(link):
        return link.bandwidth
    return LINK_TYPES[link.kind].specified * link.count if link.kind.startswith("NVLink") else 0.0


@dataclass(frozen=True)
class Found:
    """What came of a table.

    ways: which of `WAYS` fitted best. latency, rate: the constants.
    measured, predicted: seconds, by size; every second size, from the second one on, is judged.
    needed, carried, specified: bytes/s that the NVLinks of a device had to carry without help of switches at the best
        bus bandwidth; what they carry, by `link_types` and by their specification.
    """

    file: str
    machine: str
    ranks: int
    nbytes: list[int]
    measured: list[float]
    predicted: list[float]
    ways: str
    latency: float
    rate: float
    needed: float
    carried: float
    specified: float

    @property
    def errors(self) -> list[float]:
        """Of the judged sizes: predicted/measured - 1, without its sign."""
        pairs = list(zip(self.predicted, self.measured, strict=True))[1::2]
        return [abs(predicted / measured - 1) for predicted, measured in pairs]

    @property
    def worst_at(self) -> int:
        """The judged size with the largest error."""
        return self.nbytes[1::2][int(np.argmax(self.errors))]

    @property
    def in_model(self) -> bool:
        """Whether devices alone can have added."""
        return self.needed <= self.carried

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        derived = {"in_model": self.in_model, "median": statistics.median(self.errors), "worst": max(self.errors)}
        return asdict(self) | derived


def judge(file: str, table: MeasuredTable, machine: Machine) -> Found:
    """Fits and judges. Raises DataCorrupt if the table is of another number of ranks than the machine."""
    topology = machine.topology
    ranks = len(topology.devices)
    if table.ranks not in (None, ranks):
        raise DataCorrupt(f"{file}: {machine.name} has {ranks} ranks; the bandwidths are those of {table.ranks}")
    rows = [row for row in table.rows if row.nbytes]
    nbytes = np.array([row.nbytes for row in rows], dtype=float)
    measured = np.array([row.out_of_place.seconds for row in rows])
    model = Model(topology)
    ways, latency, rate = model.fit(nbytes[::2], measured[::2])
    best = max(timing.bus_bandwidth for row in rows for timing in row.timings)
    nvlink = [link for link in topology.links if topology.devices[0] in (link.a, link.b) and link.kind in LINK_TYPES]
    network = sum(link.bandwidth for link in topology.links if _is_network(link)) / ranks
    return Found(
        file,
        machine.name,
        ranks,
        [row.nbytes for row in rows],
        measured.tolist(),
        model.predict(ways, nbytes, latency, rate).tolist(),
        ways,
        latency,
        rate,
        best - network,
        sum(link.bandwidth for link in nvlink),
        sum(map(_specified, nvlink)),
    )


def _lines(found: list[Found], left_out: dict[str, str]) -> list[str]:
    lines = [f"{'table':22}  {'machine':24}  ranks  sizes  {'ways':6}  latency   rate  median  worst"]
    for each in found:
        mark = "" if each.in_model else "  *"
        lines.append(
            f"{each.file:22}  {each.machine:24}  {each.ranks:5}  {len(each.nbytes):5}  {each.ways:6}  "
            f"{each.latency:7.2f}  {each.rate:5.3f}  {statistics.median(each.errors):6.1%}  {max(each.errors):5.1%} at "
            f"{format_bytes(each.worst_at)}{mark}"
        )
    for title, said in (("in the model", True), ("out of it", False)):
        group = [each for each in found if each.in_model == said]
        errors = [error for each in group for error in each.errors]
        if errors:
            lines.append(
                f"{title}: {len(group)} tables, {len(errors)} sizes judged: median {statistics.median(errors):.1%}, "
                f"worst {max(errors):.1%}"
            )
    for each in found:
        if not each.in_model:
            lines.append(
                f"* {each.file}: if only devices added, NVLinks would carry {format_rate(each.needed)}, not "
                f"{format_rate(each.carried)} ({format_rate(each.specified)} specified)"
            )
    lines += [f"left out: {name}: {reason}" for name, reason in left_out.items()]
    return lines


def _draw(found: list[Found], path: Path) -> None:
    """Of the tables in the model, those whose worst error is smallest and largest."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    inside = sorted((each for each in found if each.in_model), key=lambda each: max(each.errors))
    shown = inside[:: max(1, len(inside) - 1)]
    figure = Figure(figsize=(6 * len(shown), 4.4), dpi=90, layout="constrained")
    for axes, each in zip(np.ravel(figure.subplots(1, len(shown))), shown, strict=True):
        axes.plot(each.nbytes, each.predicted, color="C0", label="predicted")
        dots = {"linestyle": "", "marker": "o", "markersize": 5, "color": "C1"}
        axes.plot(each.nbytes[::2], each.measured[::2], markerfacecolor="none", label="measured, fitted to", **dots)
        axes.plot(each.nbytes[1::2], each.measured[1::2], label="measured, judged", **dots)
        axes.set(xscale="log", yscale="log", xlabel="size of the buffer", ylabel="time of an all-reduce")
        axes.set_title(
            f"{each.machine}: median error {statistics.median(each.errors):.1%}, worst {max(each.errors):.1%}"
        )
        axes.xaxis.set_major_formatter(EngFormatter("B"))
        axes.yaxis.set_major_formatter(EngFormatter("s"))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> int:
    """Runs it; 0 if all tables could be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, in seconds and bytes/s")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the best and the worst table, as PNG or SVG")
    options = parser.parse_args(arguments)
    found: list[Found] = []
    left_out: dict[str, str] = {}
    try:
        paths = sorted(options.folder.glob("*.txt"))
        if not paths:
            raise DataMissing(f"{options.folder}: there are no files *.txt")
        for path in paths:
            table = load_nccl_tests(path)
            machine = machine_of(path.read_text(encoding="utf-8", errors="replace"))
            sizes = sum(row.nbytes > 0 for row in table.rows)
            if sizes < LEAST_SIZES:
                left_out[path.stem] = f"{sizes} sizes"
            elif machine is None:
                left_out[path.stem] = "it does not say on which of the known machines"
            else:
                found.append(judge(path.stem, table, machine))
    except SamegradError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(_lines(found, left_out)))
    if options.json:
        record = {"tables": [each.to_json() for each in found], "left_out": left_out}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if options.plot and any(each.in_model for each in found):
        _draw(found, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
