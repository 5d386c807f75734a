"""The matrix that `nvidia-smi topo -m` prints, as a topology.

NV# between two devices is # NVLinks: a link of their own; if a device would need more NVLinks for that than one has,
there is an NVSwitch between them, to which each has #. What lies on PCIe follows from the other words; see `pcie_tree`.
The matrix does not tell generations. By the NVLinks of a device: up to 6 are NVLink 2 (V100), up to 12 NVLink 3 (A100),
more NVLink 4 (H100; B200 looks the same), 4 between just two devices the bridge of an RTX 3090; with PCIe 3.0, 4.0, 5.0
and 4.0. `Rates` overrides what follows from that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from samegrad.errors import TopologyError
from samegrad.topology.builder import Builder
from samegrad.topology.graph import Kind, Topology
from samegrad.topology.link_types import LINK_TYPES, LinkType, Rates
from samegrad.topology.matrix import Matrix, clean_lines, read_matrix
from samegrad.topology.pcie_tree import End, Nearness, PcieHost

__all__ = ["from_nvidia_smi"]

_CELL = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")
_DEVICE = re.compile(r"GPU\d+")
_ROW = re.compile(r"(?:^|[\s:>])(GPU\d+)\s+(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC)(?:\s|$)")
_MOST_NVLINKS = 18  # of one device, up to Blackwell
_MOST_ENDS = 512


@dataclass(frozen=True, slots=True)
class _Generation:
    nvlink: LinkType
    pcie: str
    socket: LinkType


def from_nvidia_smi(text: str, rates: Rates | None = None, source: str = "nvidia-smi") -> Topology:
    """The topology that the first matrix in `text` describes; `source` names where the text comes from.

    Raises TopologyError, with the line: there is no matrix, it is cut or not alike on both sides of the diagonal.
    """
    lines = clean_lines(text, source)
    try:
        matrix = read_matrix(lines, 1, _CELL, _DEVICE)
        if matrix is None:
            raise TopologyError(_why_none(lines))
        _check(matrix)
        if not any(line.strip() for line in lines[matrix.last :]):
            _check_end(matrix)
        return _build(matrix, rates or Rates(), source)
    except TopologyError as error:
        raise TopologyError(f"{source}: {error}") from None


def _why_none(lines: list[str]) -> str:
    for number, line in enumerate(lines, 1):
        match = _ROW.search(line)
        if match:
            return (
                f"line {number}: row {match[1]} has no line with the names of the columns above it; the beginning is "
                "missing: expected the whole output of `nvidia-smi topo -m`"
            )
    for number, line in enumerate(lines, 1):
        if _DEVICE.search(line):
            return (
                f"line {number}: expected a matrix as `nvidia-smi topo -m` prints it, below a line with the names of "
                f"its columns; got {line.strip()[:60]!r}"
            )
    return "line 1: there is no matrix of devices, GPU0 and so on; expected the output of `nvidia-smi topo -m`"


def _check(matrix: Matrix) -> None:
    columns = matrix.columns
    if len(columns) > _MOST_ENDS:
        raise TopologyError(f"line {matrix.header}: at most {_MOST_ENDS} columns; got {len(columns)}")
    for name, cells in matrix.cells.items():
        line, at = matrix.lines[name], columns.index(name)
        if len(cells) < len(columns) and (_DEVICE.fullmatch(name) or matrix.rest[name]):
            got = repr(matrix.rest[name][0]) if matrix.rest[name] else "the end of the line: it is cut"
            raise TopologyError(
                f"line {line}: row {name}, column {columns[len(cells)]}: expected X, NV#, PIX, PXB, PHB, NODE or SYS; "
                f"got {got}"
            )
        for other, cell in zip(columns, cells, strict=False):
            if (cell == "X") != (other == name):
                raise TopologyError(
                    f"line {line}: row {name}, column {other}: X stands on the diagonal and nowhere else; got {cell}"
                )
            back = matrix.cells.get(other, [])
            if at < len(back) and back[at] != cell:
                raise TopologyError(
                    f"line {line}: row {name}, column {other} says {cell}, but in line "
                    f"{matrix.lines[other]} row {other} says {back[at]}; expected the same"
                )
    missing = [name for name in columns if _DEVICE.fullmatch(name) and name not in matrix.cells]
    if missing:
        raise TopologyError(
            f"line {matrix.last}: the matrix ends here, without {'row' if len(missing) == 1 else 'rows'} "
            f"{', '.join(missing)}: it is cut; expected the whole output of `nvidia-smi topo -m`"
        )


def _check_end(matrix: Matrix) -> None:
    """The text ends with the last row, which must not have fewer words than the others, nor the beginning of these."""
    last = list(matrix.lines)[-1]
    words = matrix.rest[last]
    others = [rest for name, rest in matrix.rest.items() if name != last and _DEVICE.fullmatch(name)]
    if _DEVICE.fullmatch(last) and others:
        cut = len(words) < min(map(len, others)) or any(
            rest != words and " ".join(rest).startswith(" ".join(words)) for rest in others
        )
        if cut:
            raise TopologyError(
                f"line {matrix.last}: row {last} ends with {' '.join(words)!r}, where others go on: it is cut; "
                "expected the whole output of `nvidia-smi topo -m`"
            )


def _build(matrix: Matrix, rates: Rates, source: str) -> Topology:
    columns = matrix.columns
    devices = [name for name in columns if _DEVICE.fullmatch(name)]
    rank = {name: number for number, name in enumerate(devices)}
    counts = {
        (a, b): int(cell[2:])
        for a in devices
        for b, cell in zip(columns, matrix.cells[a], strict=True)
        if cell.startswith("NV") and rank.get(b, -1) > rank[a]
    }
    for (a, b), count in counts.items():
        if not 0 < count <= _MOST_NVLINKS:
            raise TopologyError(
                f"line {matrix.lines[a]}: row {a}, column {b}: a device has 1 to {_MOST_NVLINKS} NVLinks; got NV{count}"
            )
    needed, most = dict.fromkeys(devices, 0), dict.fromkeys(devices, 0)
    for pair, count in counts.items():
        for name in pair:
            needed[name] += count
            most[name] = max(most[name], count)
    switched = max(needed.values(), default=0) > _MOST_NVLINKS
    each = max(counts.values(), default=0) if switched else max(needed.values(), default=0)
    generation = _generation(each, len(devices))
    made = Builder()
    for name in devices:
        made.node(name.lower(), Kind.DEVICE)
    if switched:
        made.node("nvswitch", Kind.SWITCH)
        for name in devices:
            if most[name]:
                made.links_of(name.lower(), "nvswitch", most[name], generation.nvlink, rates.nvlink)
    else:
        for (a, b), count in counts.items():
            made.links_of(a.lower(), b.lower(), count, generation.nvlink, rates.nvlink)
    ends = tuple(
        End(name.lower(), Kind.DEVICE if name in devices else Kind.NIC, _numa(matrix, name)) for name in columns
    )
    PcieHost(ends, lambda i, j: _nearness(matrix, i, j), generation.pcie, generation.socket, rates).add_to(made)
    return made.build(source)


def _generation(nvlinks: int, devices: int) -> _Generation:
    """What a device with so many NVLinks is likely to have."""
    if nvlinks == 4 and devices == 2:
        return _Generation(LINK_TYPES["NVLink 3 bridge"], "16 GT/s", LINK_TYPES["UPI"])
    if nvlinks <= 6:
        return _Generation(LINK_TYPES["NVLink 2"], "8 GT/s", LINK_TYPES["UPI"])
    if nvlinks <= 12:
        return _Generation(LINK_TYPES["NVLink 3"], "16 GT/s", LINK_TYPES["Infinity Fabric, Zen 2"])
    return _Generation(LINK_TYPES["NVLink 4"], "32 GT/s", LINK_TYPES["UPI 2.0"])


def _nearness(matrix: Matrix, i: int, j: int) -> Nearness | None:
    for row, column in ((i, j), (j, i)):
        cells = matrix.cells.get(matrix.columns[row], [])
        if column < len(cells):
            word = "SYS" if cells[column] == "SOC" else cells[column]
            return Nearness[word] if word in Nearness.__members__ else None
    return None


def _numa(matrix: Matrix, name: str) -> str | None:
    """The NUMA node of a row, or else its processors; None if it names none.

    Cells without text vanish among blanks, so the words are told apart by how they look: processors are a range or a
    list, or come first of two numbers.
    """
    words = [word for word in matrix.rest.get(name, []) if word != "N/A"]
    processors = next((word for word in words[:1] if re.fullmatch(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*", word)), None)
    if processors is None:
        return None
    if len(words) > 1 and words[1].isdecimal():
        return words[1]
    return processors
