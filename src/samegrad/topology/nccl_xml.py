"""The topology files of NCCL and RCCL: what NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE reads.

`<system>` holds a `<cpu>` for each NUMA node, with the `<pci>` devices below it; in those of devices a `<gpu>` with its
`<nvlink>` or `<xgmi>` connections, in those of network cards a `<nic>` with its `<net>`. Clouds publish files with the
PCI tree only, in which the class tells what something is: 0x0302 and 0x0300 a GPU of NVIDIA, 0x0380 and 0x12 of AMD,
0x02 a network card, 0x06 a bridge. A connection stands in the file at both of its ends and is one link here; one of a
device to itself, or to a device that is not in the file, joins nothing and is left out.

Ranks follow `dev`, the number of the device in CUDA or HIP, or else the bus addresses, by which CUDA can number them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from samegrad.errors import TopologyError
from samegrad.topology.builder import Builder
from samegrad.topology.graph import Kind, Topology
from samegrad.topology.link_types import LinkType, Rates, nvlink_of, pcie, socket_of, xgmi_of
from samegrad.topology.xml_tree import Element, parse_xml

__all__ = ["from_nccl_xml"]

_DEVICES = ("0x0302", "0x0300", "0x0380", "0x1200")
_NVSWITCH = "0x068000"
_MOST_LINKS = 1024
_MOST_THINGS = 4096


@dataclass(slots=True)
class _Thing:
    """A device, card or switch in the PCI tree. above: the thing above it, None for the host bridge of its socket."""

    kind: Kind
    element: Element
    above: _Thing | None
    root: str
    name: str = ""

    @property
    def bus(self) -> str:
        return self.element.attributes.get("busid", "").lower()


def from_nccl_xml(text: str, rates: Rates | None = None, source: str = "NCCL topology") -> Topology:
    """The topology that a file of NCCL describes; `source` names where the text comes from.

    Raises TopologyError, with the line: not well-formed, another kind of file, something that cannot be told.
    """
    try:
        root = parse_xml(text)
        if root.tag in ("graphs", "graph"):
            raise TopologyError(
                f"line {root.line}: <{root.tag}> is a graph file of NCCL (NCCL_GRAPH_DUMP_FILE), the rings and trees "
                "that it chose; expected a topology, <system> (NCCL_TOPO_DUMP_FILE)"
            )
        if root.tag != "system":
            raise TopologyError(f"line {root.line}: expected <system>, a topology of NCCL; got <{root.tag}>")
        return _Reader(rates or Rates()).read(root, source)
    except TopologyError as error:
        raise TopologyError(f"{source}: {error}") from None


class _Reader:
    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.made = Builder()
        self.things: list[_Thing] = []

    def read(self, system: Element, source: str) -> Topology:
        cpus = self.sockets(system)
        for root, cpu in cpus.items():
            self.walk(cpu, None, root)
        if len(self.things) > _MOST_THINGS:
            raise TopologyError(f"line {system.line}: at most {_MOST_THINGS} devices, cards and switches")
        devices = self.devices(system)
        self.names()
        for device in devices:
            self.made.node(device.name, Kind.DEVICE)
        for root in cpus:
            self.made.socket(root.removeprefix("root"))
        wide = self.fast_links(devices)
        for thing in self.things:
            if thing.kind is not Kind.DEVICE:
                self.made.node(thing.name, thing.kind)
            above = thing.root if thing.above is None else thing.above.name
            if (thing.name, above) not in wide:
                attributes = thing.element.attributes
                bandwidth, kind = pcie(attributes.get("link_speed", ""), _whole(attributes.get("link_width", ""), 0))
                self.made.link(thing.name, above, self.rates.pcie or bandwidth, kind)
        self.made.join_sockets(list(cpus), _socket(next(iter(cpus.values()))), self.rates.socket)
        return self.made.build(source)

    def sockets(self, system: Element) -> dict[str, Element]:
        """The `<cpu>` elements by the name of their host bridge."""
        cpus: dict[str, Element] = {}
        for cpu in system.all("cpu"):
            number = cpu.attributes.get("numaid", "")
            if not number.isdecimal():
                number = next(str(free) for free in range(len(cpus) + 1) if f"root{free}" not in cpus)
            if f"root{number}" in cpus:
                raise TopologyError(
                    f"line {cpu.line}: two <cpu> have the numaid {number} (the other is in line "
                    f"{cpus[f'root{number}'].line}); expected the file of one host"
                )
            cpus[f"root{number}"] = cpu
        if not cpus:
            raise TopologyError(f"line {system.line}: <system> has no <cpu>, so nothing that devices are joined to")
        return cpus

    def walk(self, parent: Element, above: _Thing | None, root: str) -> None:
        for element in parent.children:
            if element.tag == "nic":
                self.card(element, element, above, root)
            elif element.tag == "pci":
                kind = _kind(element)
                if kind is Kind.NIC:
                    self.card(element, (element.all("nic") or [element])[0], above, root)
                elif kind is not None:
                    thing = _Thing(kind, element, above, root)
                    self.things.append(thing)
                    if kind is Kind.SWITCH:
                        self.walk(element, thing, root)

    def card(self, element: Element, nic: Element, above: _Thing | None, root: str) -> None:
        """A network card; one with several networks is a switch with a card for each, which share its connection."""
        networks = len(nic.all("net"))
        if networks > 1:
            above = _Thing(Kind.SWITCH, element, above, root)
            self.things.append(above)
        self.things += [_Thing(Kind.NIC, element, above, root) for _ in range(max(1, networks))]

    def devices(self, system: Element) -> list[_Thing]:
        """The devices in the order of their ranks, with their names."""
        devices = [thing for thing in self.things if thing.kind is Kind.DEVICE]
        if not devices:
            raise TopologyError(f"line {system.line}: there is no GPU in the file, neither <gpu> nor a class of one")
        by_bus: dict[str, _Thing] = {}
        for device in devices:
            other = by_bus.setdefault(device.bus, device)
            if other is not device:
                raise TopologyError(
                    f"line {device.element.line}: two devices have the busid {device.bus!r} (the other is in line "
                    f"{other.element.line})"
                )
        numbers = [_whole(_gpu(device).attributes.get("dev", ""), -1) for device in devices]
        if min(numbers) >= 0 and len(set(numbers)) == len(numbers):
            ordered = [device for _, device in sorted(zip(numbers, devices, strict=True), key=lambda pair: pair[0])]
            numbers.sort()
        else:
            ordered = sorted(devices, key=lambda device: device.bus)
            numbers = list(range(len(devices)))
        for number, device in zip(numbers, ordered, strict=True):
            device.name = f"gpu{number}"
        return ordered

    def names(self) -> None:
        """Gives switches and network cards their names."""
        counts: Counter[Kind] = Counter()
        for thing in self.things:
            if thing.kind is not Kind.DEVICE:
                thing.name = f"{'plx' if thing.kind is Kind.SWITCH else 'nic'}{counts[thing.kind]}"
                counts[thing.kind] += 1

    def fast_links(self, devices: list[_Thing]) -> set[tuple[str, str]]:
        """Adds NVLink and XGMI, once for each pair. Returns pairs of device and host bridge that are joined so."""
        by_bus = {device.bus: device for device in devices}
        counts: Counter[tuple[str, str]] = Counter()
        types: dict[str, tuple[LinkType, float | None]] = {}
        lines: dict[tuple[str, str], int] = {}
        for device in devices:
            gpu = _gpu(device)
            for element in gpu.children:
                if element.tag not in ("nvlink", "xgmi"):
                    continue
                target = self.target(element, device, by_bus)
                if target not in ("", device.name):
                    types[device.name] = self.link_type(gpu, element.tag)
                    counts[device.name, target] += _count(element)
                    lines[device.name, target] = element.line
        names = {device.name for device in devices}
        wide: set[tuple[str, str]] = set()
        for (a, b), count in counts.items():
            if b in names and counts[b, a] != count:
                raise TopologyError(
                    f"line {lines[a, b]}: {a} has {count} links to {b}, but {b} has {counts[b, a]} to {a}; expected "
                    "the same"
                )
            if b == "nvswitch" and all(node.name != b for node in self.made.nodes):
                self.made.node(b, Kind.SWITCH)
            if b not in names or (b, a) not in wide:
                self.made.links_of(a, b, count, *types[a])
                wide.add((a, b))
        return wide

    def target(self, element: Element, device: _Thing, by_bus: dict[str, _Thing]) -> str:
        """The name of what a connection leads to, "" if it is not in the file."""
        there = by_bus.get(element.attributes.get("target", "").lower())
        if there is not None:
            return there.name
        kind = element.attributes.get("tclass", "").lower()
        if kind == _NVSWITCH:
            return "nvswitch"
        return device.root if kind.startswith("0x0680") else ""

    def link_type(self, gpu: Element, tag: str) -> tuple[LinkType, float | None]:
        if tag == "nvlink":
            return nvlink_of(_whole(gpu.attributes.get("sm", ""), 70)), self.rates.nvlink
        return xgmi_of(gpu.attributes.get("gcn", "")), self.rates.xgmi


def _kind(element: Element) -> Kind | None:
    """What a `<pci>` is; None for what has no part in exchanges, as disks and bridges with nothing below."""
    if element.all("gpu"):
        return Kind.DEVICE
    if element.all("pci"):
        return Kind.SWITCH
    if element.all("nic"):
        return Kind.NIC
    number = element.attributes.get("class", "").lower()
    if not number:
        raise TopologyError(
            f"line {element.line}: <pci busid={element.attributes.get('busid', '')!r}> has no class, so that it may be "
            'a GPU or a network card; expected class="0x030200" or the like, as NCCL_TOPO_DUMP_FILE writes it'
        )
    if number.startswith(_DEVICES):
        return Kind.DEVICE
    return Kind.NIC if number.startswith("0x02") else None


def _gpu(device: _Thing) -> Element:
    found = device.element.all("gpu")
    return found[0] if found else Element("gpu", {}, device.element.line)


def _count(element: Element) -> int:
    text = element.attributes.get("count", "1")
    count = _whole(text, 0)
    if not 0 < count <= _MOST_LINKS:
        raise TopologyError(
            f"line {element.line}: count must be a number of links from 1 to {_MOST_LINKS}; got {text!r}"
        )
    return count


def _whole(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else default


def _socket(cpu: Element) -> LinkType:
    attributes = cpu.attributes
    return socket_of(
        attributes.get("arch", ""),
        attributes.get("vendor", ""),
        _whole(attributes.get("familyid", ""), 0),
        _whole(attributes.get("modelid", ""), 0),
    )
