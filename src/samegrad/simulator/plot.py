"""How time grows with the bytes and with the number of devices, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from samegrad.errors import ConfigurationError
from samegrad.output import save_figure
from samegrad.simulator.survey import Candidate, first_devices, laid_out
from samegrad.topology import Topology
from samegrad.units import format_bytes

__all__ = ["draw_times"]

_SMALLEST = 1e3
_MOST_MESSAGES = 30_000  # beyond these, a curve has its ends only
_MOST_DEVICES = 128  # to which the time is followed
_STYLES = ("-", "--", ":")


def draw_times(
    candidates: Sequence[Candidate], topology: Topology, nbytes: float, barriers: bool, pieces: int, path: Path
) -> None:
    """Draws time against bytes, and against the number of devices (the first ones of the topology) at `nbytes` bytes.

    Raises OutputError if `path` cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, LogLocator

    figure = Figure(figsize=(12, 5.2), dpi=120, layout="constrained")
    by_bytes, by_devices = figure.subplots(1, 2)
    counts = _counts(len(topology.devices))
    parts = {count: first_devices(topology, count) for count in counts}
    for number, candidate in enumerate(candidates):
        look = {"color": f"C{number % 10}", "linestyle": _STYLES[number // 10 % 3], "linewidth": 1.6}
        sizes = np.geomspace(_SMALLEST, max(1e9, nbytes), 19)
        name, placed = candidate.algorithm.name, candidate.placed(topology, barriers)
        first = placed.simulate(_SMALLEST)
        if len(first.messages) > _MOST_MESSAGES:
            sizes = sizes[[0, -1]]
        others = [placed.simulate(float(size)).seconds for size in sizes[1:]]
        by_bytes.plot(sizes, [first.seconds, *others], label=name, **look)
        points = []
        for count, part in parts.items():
            try:
                found = laid_out(name, part, pieces).simulate(part, nbytes, barriers)
            except ConfigurationError:  # not for so many devices, or no way between them
                continue
            points.append((count, found.seconds))
        if points:
            by_devices.plot(*zip(*points, strict=True), marker="o", markersize=3, **look)
    by_bytes.axvline(nbytes, color="gray", linewidth=0.8, alpha=0.6)
    by_bytes.set(xscale="log", yscale="log", xlabel="size of the buffer", ylabel="time")
    by_bytes.set_title(f"{topology.name}, {len(topology.devices)} devices")
    by_bytes.xaxis.set_major_formatter(EngFormatter("B"))
    by_devices.set(yscale="log", xlabel="devices, the first of all", ylabel="time", title=format_bytes(nbytes))
    if counts[-1] > 16:
        by_devices.set_xscale("log", base=2)
    by_devices.set_xticks(counts, [str(count) for count in counts])
    by_devices.minorticks_off()
    for axes in (by_bytes, by_devices):
        low, high = axes.get_ylim()
        if high < 100 * low:  # powers of ten alone would be one or two
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(EngFormatter("s"))
        axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    save_figure(figure, path)


def _counts(devices: int) -> list[int]:
    """Numbers of devices to look at."""
    if devices <= 16:
        return list(range(min(2, devices), devices + 1))
    powers = [1 << power for power in range(1, devices.bit_length()) if 1 << power <= _MOST_DEVICES]
    return [count for count in powers if count < devices] + ([devices] if devices <= _MOST_DEVICES else [])
