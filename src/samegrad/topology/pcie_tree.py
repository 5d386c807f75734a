"""The PCIe part of a host, from how near its devices and network cards are to each other.

Tools tell the nearness of two, not what lies between. From it follows what they must share: those on one PCIe switch
share its uplink, those of different sockets the link between these. Where nothing says more, nothing more is assumed:
each of the others has a connection of its own to the host bridge of its socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from samegrad.topology.builder import Builder
from samegrad.topology.graph import Kind
from samegrad.topology.link_types import LinkType, Rates, pcie

__all__ = ["End", "Nearness", "PcieHost"]


class Nearness(IntEnum):
    """What lies between two of a host; the names are those of nvidia-smi. NVIDIA calls SYS SOC in old versions."""

    PIX = 1  # one PCIe switch
    PXB = 2  # several PCIe switches, no host bridge
    PHB = 3  # a host bridge
    NODE = 4  # several host bridges of one NUMA node
    SYS = 5  # the link between NUMA nodes or sockets


@dataclass(frozen=True, slots=True)
class End:
    """A device or a network card. numa: whatever names the NUMA node or the processors near it; None if unknown."""

    name: str
    kind: Kind
    numa: str | None = None


@dataclass(frozen=True, slots=True)
class PcieHost:
    """A host: its ends, what their connections carry, what joins its sockets.

    nearness: of two ends, by their numbers; None where the tool tells of a faster way only.
    """

    ends: tuple[End, ...]
    nearness: Callable[[int, int], Nearness | None]
    generation: str
    socket: LinkType
    rates: Rates

    def add_to(self, made: Builder) -> None:
        """Adds hosts, switches, network cards and the links between all of them to `made`, which has the devices."""
        for end in self.ends:
            if end.kind is not Kind.DEVICE:
                made.node(end.name, end.kind)
        _Tree(self, made).add()


class _Tree:
    def __init__(self, host: PcieHost, made: Builder) -> None:
        self.host, self.made = host, made
        self.group = {level: list(range(len(host.ends))) for level in (Nearness.PIX, Nearness.PXB, Nearness.NODE)}
        self.switches: dict[str, int] = {}

    def add(self) -> None:
        count = len(self.host.ends)
        pairs = [(i, j, self.host.nearness(i, j)) for i in range(count) for j in range(i)]
        for level, group in self.group.items():
            for i, j, near in pairs:
                if near is not None and near <= level:
                    _unite(group, i, j)
        apart = {(i, j) for i, j, near in pairs if near is Nearness.SYS}
        for i, j, near in sorted(pairs, key=lambda pair: pair[:2]):
            if near is None and self._same_socket(i, j):
                self._unite_unless_apart(i, j, apart)
        roots = []
        for numa, groups in self._sockets().items():
            holds_devices = any(self.host.ends[i].kind is Kind.DEVICE for group in groups for i in group)
            root = self.made.socket(numa) if holds_devices else self.made.node(f"root{numa}", Kind.SWITCH)
            roots.append(root)
            for group in groups:
                above = root
                if len(groups) > 1:  # the tool says that these cross a link between NUMA nodes, within one NUMA node
                    above = self._switch("bridge")
                    self.made.links_of(above, root, 1, self.host.socket, self.host.rates.socket)
                self._hang(group, above)
        self.made.join_sockets(roots, self.host.socket, self.host.rates.socket)

    def _same_socket(self, i: int, j: int) -> bool:
        """Whether two ends of which only a faster way is known may be taken to be on one socket."""
        a, b = self.host.ends[i].numa, self.host.ends[j].numa
        return a is None or b is None or a == b

    def _unite_unless_apart(self, i: int, j: int, apart: set[tuple[int, int]]) -> None:
        group = self.group[Nearness.NODE]
        if group[i] == group[j]:
            return
        ours = [k for k, root in enumerate(group) if root == group[i]]
        theirs = [k for k, root in enumerate(group) if root == group[j]]
        if not any((max(k, m), min(k, m)) in apart for k in ours for m in theirs):
            _unite(group, i, j)

    def _sockets(self) -> dict[str, list[list[int]]]:
        """Groups of ends by NUMA node; where that has no number of its own, by a number that is free."""
        found: dict[str, list[list[int]]] = {}
        groups = [sorted(group) for group in _groups(self.group[Nearness.NODE], range(len(self.host.ends)))]
        named = [next((self.host.ends[i].numa for i in group if self.host.ends[i].numa), None) for group in groups]
        taken = {numa for numa in named if numa and numa.isdecimal()}
        free = (str(number) for number in range(len(taken) + len(groups)) if str(number) not in taken)
        numbers: dict[str, str] = {}
        for group, numa in zip(groups, named, strict=True):
            if numa is None:
                label = next(free)
            elif numa.isdecimal():
                label = numa
            else:
                label = numbers[numa] if numa in numbers else numbers.setdefault(numa, next(free))
            found.setdefault(label, []).append(group)
        return found

    def _hang(self, group: list[int], root: str) -> None:
        for shared in _groups(self.group[Nearness.PXB], group):
            switches = list(_groups(self.group[Nearness.PIX], shared))
            above = root
            if len(switches) > 1:
                above = self._switch("pex")
                self._connect(above, root)
            for ends in switches:
                parent = above
                if len(ends) > 1:
                    parent = self._switch("plx")
                    self._connect(parent, above)
                for i in ends:
                    self._connect(self.host.ends[i].name, parent)

    def _switch(self, name: str) -> str:
        number = self.switches[name] = self.switches.get(name, -1) + 1
        return self.made.node(f"{name}{number}", Kind.SWITCH)

    def _connect(self, a: str, b: str) -> None:
        bandwidth, kind = pcie(self.host.generation)
        self.made.link(a, b, self.host.rates.pcie or bandwidth, kind)


def _unite(group: list[int], i: int, j: int) -> None:
    old, new = max(group[i], group[j]), min(group[i], group[j])
    if old != new:
        group[:] = [new if root == old else root for root in group]


def _groups(group: list[int], members: Iterable[int]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for i in members:
        found.setdefault(group[i], []).append(i)
    return list(found.values())
