"""Machines and clusters that are known by name; capital letters stand for what one chooses.

A number of devices, hosts or racks is a whole number; a RATE is as 25Gb (bits per second) or 16GB (bytes per second),
of one network card in each direction. Instead of a number of devices, K may be the name of a machine, as in
"ib-4xdgx-h100@400Gb": all its network cards are joined then. Latencies within a host are 0: what starting a transfer
costs there is in software, and is measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

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


def _number(what: str, text: str) -> int:
    number = int(text) if len(text) < 10 else -1
    if number < 1:
        raise TopologyError(f"the number of {what} must be at least 1 and not absurd; got {text}")
    return number


def _devices(text: str) -> int:
    number = _number("devices", text)
    if number > 1 << 16:
        raise TopologyError(f"a host has at most {1 << 16} devices; got {number}")
    return number


def _cluster(network: clusters.Network, racks: str, hosts: str, box: str, rate: str) -> Topology:
    try:
        speed = parse_rate(rate)
    except ValueError as error:
        raise TopologyError(f"the rate of a preset: {error}") from None
    if not 0 < speed < 1e18:
        raise TopologyError(f"the rate of a preset must be more than 0 and not absurd; got {rate}")
    if re.fullmatch(r"-?\d+", box):
        made = clusters.with_card(machines.pcie_switch(_devices(box)), speed)
    else:
        made = preset(box)
    return clusters.cluster(made, _number("hosts", hosts), speed, network, _number("racks", racks))


PRESETS = (
    Preset(
        "pcie-switch-K",
        "K devices and the host on one PCIe switch, 16 GB/s each",
        lambda k: machines.pcie_switch(_devices(k)),
    ),
    Preset(
        "two-socket-pcie-K",
        "K devices on the host bridges of two sockets",
        lambda k: machines.two_socket_pcie(_devices(k)),
    ),
    Preset("dgx-1v", "8 V100 in a hybrid cube mesh of NVLinks, 18 GB/s each; p3.16xlarge", machines.dgx_1v),
    Preset("dgx-2", "16 V100 on NVSwitches", machines.dgx_2),
    Preset("dgx-a100", "8 A100 on NVSwitches", machines.dgx_a100),
    Preset("dgx-h100", "8 H100 on NVSwitches", machines.dgx_h100),
    Preset("nvl72", "72 B200 of 18 hosts on one NVLink switch system", machines.nvl72),
    Preset("p2-16xlarge", "16 dies of 8 K80 on PCIe switches of two sockets", machines.p2_16xlarge),
    Preset("g4dn-12xlarge", "4 T4 on one host bridge", machines.g4dn_12xlarge),
    Preset(
        "ethernet-HxK@RATE",
        "H hosts, each a pcie-switch-K with a network card, on one Ethernet switch",
        lambda h, k, rate: _cluster(clusters.ETHERNET, "1", h, k, rate),
    ),
    Preset(
        "ib-HxK@RATE",
        "the same on one InfiniBand switch",
        lambda h, k, rate: _cluster(clusters.INFINIBAND, "1", h, k, rate),
    ),
    Preset(
        "fat-tree-RxHxK@RATE",
        "R racks of H such hosts, InfiniBand, full rate between the racks",
        lambda r, h, k, rate: _cluster(clusters.INFINIBAND, r, h, k, rate),
    ),
)
"""The table."""

_ALIASES = {"p3-16xlarge": "dgx-1v"}
_PLACES = {"R": r"(-?\d+)", "H": r"(-?\d+)", "K": r"(-?\d+|[a-z][^@]*)", "RATE": "(.+)"}


def preset(name: str) -> Topology:
    """The topology that `name` stands for; Amazon's names may have their point. Raises TopologyError: no such name,
    absurd numbers."""
    plain = re.sub(r"(?<=[a-z0-9])\.(?=\d*xlarge)", "-", name)
    for each in PRESETS:
        match = _pattern(each.name).fullmatch(_ALIASES.get(plain, plain))
        if match:
            made: Topology = each.make(*match.groups())
            return replace(made, name=name)
    names = [each.name for each in PRESETS]
    raise TopologyError(f"there is no preset {unknown(name, names)} There are {', '.join(names)}")


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("".join(_PLACES.get(word, re.escape(word)) for word in re.split(r"(RATE|[A-Z])", name)))
