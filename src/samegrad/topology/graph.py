"""Devices, hosts, switches and network cards, and the links between them. Bandwidth in bytes/s, latency in seconds.

    topology = samegrad.Topology.preset("dgx-1v")       # or .load("cluster.toml"), .from_nvidia_smi(text)

Both directions of a link are independent (full duplex): link number i is the directed links 2 * i, from `a` to `b`, and
2 * i + 1, back. What several routes share (the uplink of a PCIe switch, a network card, a port) is a link of its own
that all of them use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from samegrad.errors import TopologyError

if TYPE_CHECKING:
    from samegrad.topology.link_types import Rates
    from samegrad.topology.routes import Router

__all__ = ["Kind", "Link", "Node", "Topology"]

_LEAST_RATE, _MOST_RATE = 1.0, 1e18  # bytes/s; anything else is a mistake, and times would be no finite numbers
_MOST_SECONDS = 1e6
_MOST_PARALLEL = 2**16


class Kind(StrEnum):
    """What a node is. Only switches and network cards forward what others send."""

    DEVICE = "device"  # a GPU, or whatever else holds gradients
    HOST = "host"  # processor and memory of a host, or of one of its sockets; can play a rank that holds no gradients
    SWITCH = "switch"  # also a PCIe host bridge
    NIC = "nic"


@dataclass(frozen=True, slots=True)
class Node:
    """A point that links join.

    name: unique in its topology.
    kind: device, host, switch or nic.
    host: the host that it is in; "" for the switches of a network.
    add_rate: bytes of result per second that it adds up; None if additions are to cost no time.
    """

    name: str
    kind: Kind
    host: str = ""
    add_rate: float | None = None

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable() or self.name != self.name.strip():
            raise TopologyError(f"a node needs a name that can be printed, without blanks around it; got {self.name!r}")
        if not self.host.isprintable():
            raise TopologyError(f"node {self.name!r}: host must be text that can be printed; got {self.host!r}")
        if self.add_rate is not None:
            _check_rate(f"node {self.name!r}: add_rate", self.add_rate)


@dataclass(frozen=True, slots=True)
class Link:
    """What joins two nodes, alike in both directions.

    a: name of one end.
    b: name of the other end.
    bandwidth: bytes/s in each direction, of all parallel links together.
    latency: seconds from the first byte's start to its arrival.
    per_message: seconds for which each message occupies the link, beside its bytes.
    kind: what people call it, as "NVLink 2" or "Ethernet 25 Gb/s".
    count: number of parallel links.
    """

    a: str
    b: str
    bandwidth: float
    latency: float = 0.0
    per_message: float = 0.0
    kind: str = ""
    count: int = 1

    def __post_init__(self) -> None:
        where = f"link {self.a} - {self.b}"
        if self.a == self.b:
            raise TopologyError(f"{where}: a link joins two different nodes")
        _check_rate(f"{where}: bandwidth", self.bandwidth)
        for name, seconds in (("latency", self.latency), ("per_message", self.per_message)):
            if not 0 <= seconds <= _MOST_SECONDS:
                raise TopologyError(f"{where}: {name} must be seconds, 0 to {_MOST_SECONDS:g}; got {seconds}")
        if not self.kind.isprintable():
            raise TopologyError(f"{where}: kind must be text that can be printed; got {self.kind!r}")
        if not 1 <= self.count <= _MOST_PARALLEL:
            raise TopologyError(f"{where}: count must be 1 to {_MOST_PARALLEL} parallel links; got {self.count}")


def _check_rate(what: str, rate: float) -> None:
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise TopologyError(f"{what} must be positive bytes/s, from {_LEAST_RATE:g} to {_MOST_RATE:g}; got {rate}")


@dataclass(frozen=True)
class Topology:
    """Nodes and links. Names are unique, each link joins known nodes, two nodes have one link at most, and every device
    can be reached from every other.

    Raises TopologyError, which names the node or the link.
    """

    name: str
    nodes: tuple[Node, ...] = field(repr=False)
    links: tuple[Link, ...] = field(repr=False)

    def __post_init__(self) -> None:
        from samegrad.topology.check import check

        check(self)

    @classmethod
    def preset(cls, name: str) -> Topology:
        """A machine or a cluster that is known by name, as "dgx-1v" or "ethernet-4x8@25Gb"; see `presets`."""
        from samegrad.topology.presets import preset

        return preset(name)

    @classmethod
    def load(cls, path: str | Path, rates: Rates | None = None) -> Topology:
        """What a file holds: TOML (see `files`), or the output of one of the tools of `from_text`, as there.

        Raises TopologyError, which names the line; DataMissing if there is no such file.
        """
        from samegrad.topology.reading import load

        return load(Path(path), rates)

    @classmethod
    def from_text(cls, text: str, rates: Rates | None = None) -> Topology:
        """What the output of `nvidia-smi topo -m`, `rocm-smi --showtopo`, a topology of NCCL in XML, or TOML says.

        rates: bandwidths to use instead of the defaults of `link_types`.
        """
        from samegrad.topology.reading import from_text

        return from_text(text, rates)

    @classmethod
    def from_nvidia_smi(cls, text: str, rates: Rates | None = None) -> Topology:
        """The matrix that `nvidia-smi topo -m` prints. Raises TopologyError, which names the line."""
        from samegrad.topology.nvidia_smi import from_nvidia_smi

        return from_nvidia_smi(text, rates)

    @classmethod
    def from_rocm_smi(cls, text: str, rates: Rates | None = None) -> Topology:
        """What `rocm-smi --showtopo` prints. Raises TopologyError, which names the line."""
        from samegrad.topology.rocm_smi import from_rocm_smi

        return from_rocm_smi(text, rates)

    @classmethod
    def from_nccl_xml(cls, text: str, rates: Rates | None = None) -> Topology:
        """A topology file of NCCL or RCCL, as NCCL_TOPO_DUMP_FILE writes it. Raises TopologyError with the line."""
        from samegrad.topology.nccl_xml import from_nccl_xml

        return from_nccl_xml(text, rates)

    def to_toml(self) -> str:
        """The topology as TOML, which `load` reads."""
        from samegrad.topology.files import to_toml

        return to_toml(self)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices; their order is that of the ranks."""
        return self._named(Kind.DEVICE)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Names of the nodes of kind host, in order."""
        return self._named(Kind.HOST)

    @cached_property
    def capacities(self) -> NDArray[np.float64]:
        """Bandwidth of each directed link, in bytes/s. Read-only, as the next two."""
        return _both_ways([link.bandwidth for link in self.links])

    @cached_property
    def latencies(self) -> NDArray[np.float64]:
        """Latency of each directed link, in seconds."""
        return _both_ways([link.latency for link in self.links])

    @cached_property
    def per_messages(self) -> NDArray[np.float64]:
        """Seconds for which each message occupies each directed link, beside its bytes."""
        return _both_ways([link.per_message for link in self.links])

    def node(self, name: str) -> Node:
        """The node of this name. Raises TopologyError with the nearest name there is."""
        if name not in self._by_name:
            from samegrad.topology.check import unknown

            raise TopologyError(f"{self.name}: there is no node {unknown(name, self._by_name)}")
        return self._by_name[name]

    def route(self, a: str, b: str) -> tuple[int, ...]:
        """The directed links that lead from node `a` to node `b`; see `routes` for which way is taken.

        Raises TopologyError for an unknown name, and if there is no way that passes switches and network cards only.
        """
        self.node(a), self.node(b)
        return self._router.route(a, b)

    def link_name(self, directed: int) -> str:
        """A directed link in words: "gpu0 -> plx0"."""
        link = self.links[directed // 2]
        return f"{link.b} -> {link.a}" if directed % 2 else f"{link.a} -> {link.b}"

    def device_links(self) -> Iterator[tuple[int, int, int]]:
        """The links that join two devices: rank of the one, rank of the other, number of the link."""
        rank = {name: number for number, name in enumerate(self.devices)}
        for number, link in enumerate(self.links):
            if link.a in rank and link.b in rank:
                yield rank[link.a], rank[link.b], number

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _router(self) -> Router:
        from samegrad.topology.routes import Router

        return Router(self)

    def _named(self, kind: Kind) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if node.kind is kind)


def _both_ways(values: list[float]) -> NDArray[np.float64]:
    array = np.repeat(np.array(values, dtype=np.float64), 2)
    array.flags.writeable = False
    return array
