"""Machines and clusters that are known by name; capital letters stand for what one chooses.

A number of devices, hosts or racks is a whole number; a RATE is as 25Gb (bits per second) or 16GB (bytes per second),
in each direction. Latencies within a host are 0: what starting a transfer costs there is in software, and is measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from samegrad.errors import TopologyError
from samegrad.topology import clusters, machines
from samegrad.topology.check import unknown
from samegrad.topology.graph import Topology
from samegrad.units import parse_rate

__all__ = ["PRESETS", "Preset", "preset"]


@dataclass(frozen=True, slots=True)
class Preset:
    """A name, as people see it in lists; what it is; and a function of the words that stand for its capital letters."""

    name: str
    summary: str
    make: Callable[..., Topology]


PRESETS = (
    Preset(
        "pcie-switch-K",
        "K devices and the host on one PCIe switch, 16 GB/s each",
        lambda k: machines.pcie_switch(_number("devices", k)),
    ),
    Preset("dgx-1v", "8 V100, NVLink hybrid cube mesh, 18 GB/s a link", machines.dgx_1v),
    Preset(
        "ethernet-HxK@RATE",
        "H hosts, each a pcie-switch-K with a network card of RATE, on one Ethernet switch",
        lambda h, k, rate: clusters.flat(_number("hosts", h), _number("devices", k), _rate(rate), clusters.ETHERNET),
    ),
)
_PLACES = {"K": r"(-?\d+)", "H": r"(-?\d+)", "R": r"(-?\d+)", "RATE": "(.+)"}


def preset(name: str) -> Topology:
    """The topology that `name` stands for. Raises TopologyError: no such name, absurd numbers."""
    for each in PRESETS:
        match = _pattern(each.name).fullmatch(name)
        if match:
            made: Topology = each.make(*match.groups())
            return Topology(name, made.nodes, made.links)
    raise TopologyError(f"there is no preset {unknown(name, [each.name for each in PRESETS])}")


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("".join(_PLACES.get(word, re.escape(word)) for word in re.split(r"(RATE|[A-Z])", name)))


def _number(what: str, text: str) -> int:
    number = int(text) if len(text) < 10 else -1
    if number < 1:
        raise TopologyError(f"the number of {what} must be at least 1 and not absurd; got {text}")
    return number


def _rate(text: str) -> float:
    try:
        return parse_rate(text)
    except ValueError as error:
        raise TopologyError(f"a preset's rate: {error}") from None
