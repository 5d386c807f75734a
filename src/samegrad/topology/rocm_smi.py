"""What `rocm-smi --showtopo` prints, as a topology.

The part on link types is needed; hops and NUMA nodes are used where they are there. XGMI between two devices is one
link of their own, unless it takes more than one hop. PCIE of at most 2 hops stays on a socket, of 3 crosses between
two. The output does not tell generations: XGMI 4 and PCIe 4.0 are assumed; `Rates` overrides that.
"""

from __future__ import annotations

import re

from samegrad.errors import TopologyError
from samegrad.topology.builder import Builder
from samegrad.topology.graph import Kind, Topology
from samegrad.topology.link_types import LINK_TYPES, Rates
from samegrad.topology.matrix import Matrix, clean_lines, read_matrix
from samegrad.topology.pcie_tree import End, Nearness, PcieHost

__all__ = ["from_rocm_smi"]

_DEVICE = re.compile(r"GPU\d+")
_TYPE = re.compile(r"XGMI|PCIE|0", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,9}")
_NUMA = re.compile(r"GPU\[(\d+)\]\s*:.*Numa Node:\s*(\d+)", re.IGNORECASE)
_SECTION = re.compile(r"(weight|hops|link type) between two gpus", re.IGNORECASE)
_NUMA_PART, _END = "Numa Nodes", "End of ROCm SMI Log"
_MOST_DEVICES = 512


def from_rocm_smi(text: str, rates: Rates | None = None, source: str = "rocm-smi") -> Topology:
    """The topology that `text` describes; `source` names where the text comes from.

    Raises TopologyError, with the line: no part on link types, a matrix is cut or not alike on both sides.
    """
    lines = clean_lines(text, source)
    try:
        kinds = _section(lines, "link type", _TYPE)
        if kinds is None:
            raise TopologyError(
                "line 1: there is no part 'Link Type between two GPUs'; expected the output of `rocm-smi --showtopo`"
            )
        numa = _numa_nodes(lines)
        missing = [name for name in kinds.columns if name not in numa]
        if missing and (numa or (_NUMA_PART in text and _END not in text)):
            raise TopologyError(
                f"line {len(lines)}: the part on NUMA nodes ends without {', '.join(missing)}: it is cut; expected the "
                "whole output of `rocm-smi --showtopo`"
            )
        return _build(kinds, _section(lines, "hops", _NUMBER), numa, rates or Rates(), source)
    except TopologyError as error:
        raise TopologyError(f"{source}: {error}") from None


def _section(lines: list[str], title: str, is_cell: re.Pattern[str]) -> Matrix | None:
    for number, line in enumerate(lines, 1):
        match = _SECTION.search(line)
        if match and match[1].lower() == title:
            following = (later for later in range(number, len(lines)) if "===" in lines[later])
            part = lines[: next(following, len(lines))]
            matrix = read_matrix(part, number + 1, is_cell, _DEVICE)
            if matrix is None:
                raise TopologyError(f"line {number}: the part {line.strip(' =')!r} has no matrix: it is cut or empty")
            _check(matrix, line.strip(" ="))
            return matrix
    return None


def _check(matrix: Matrix, title: str) -> None:
    columns = matrix.columns
    if len(columns) > _MOST_DEVICES:
        raise TopologyError(f"line {matrix.header}: at most {_MOST_DEVICES} columns; got {len(columns)}")
    for name in columns:
        if not _DEVICE.fullmatch(name):
            raise TopologyError(f"line {matrix.header}: expected columns GPU0, GPU1, ...; got {name!r}")
        if name not in matrix.cells:
            raise TopologyError(f"line {matrix.last}: {title}: the matrix ends here, without row {name}: it is cut")
        cells, line = matrix.cells[name], matrix.lines[name]
        if len(cells) < len(columns) or matrix.rest[name]:
            column = columns[len(cells)] if len(cells) < len(columns) else "behind the last"
            got = repr(matrix.rest[name][0]) if matrix.rest[name] else "the end of the line: it is cut"
            raise TopologyError(f"line {line}: {title}: row {name}, column {column}: unexpected: {got}")
    for i, name in enumerate(columns):
        for j, other in enumerate(columns):
            cell, back = matrix.cells[name][j].upper(), matrix.cells[other][i].upper()
            if (i == j) != (cell == "0"):
                raise TopologyError(
                    f"line {matrix.lines[name]}: {title}: row {name}, column {other}: 0 stands on the diagonal and "
                    f"nowhere else; got {cell}"
                )
            if cell != back:
                raise TopologyError(
                    f"line {matrix.lines[name]}: {title}: row {name}, column {other} says {cell}, but row {other} says "
                    f"{back}; expected the same"
                )


def _numa_nodes(lines: list[str]) -> dict[str, str]:
    return {f"GPU{match[1]}": match[2] for line in lines if (match := _NUMA.search(line))}


def _build(kinds: Matrix, hops: Matrix | None, numa: dict[str, str], rates: Rates, source: str) -> Topology:
    names = kinds.columns
    if hops is not None and hops.columns != names:
        raise TopologyError(f"line {hops.header}: hops and link types are of different devices")

    def hops_of(i: int, j: int) -> int:
        return 0 if hops is None else int(hops.cells[names[i]][j])

    def nearness(i: int, j: int) -> Nearness | None:
        if kinds.cells[names[i]][j].upper() != "PCIE" or hops is None:
            return None
        return Nearness.PHB if hops_of(i, j) <= 2 else Nearness.SYS

    made = Builder()
    devices = [made.node(name.lower(), Kind.DEVICE) for name in names]
    for i, a in enumerate(names):
        for j in range(i + 1, len(names)):
            if kinds.cells[a][j].upper() == "XGMI" and hops_of(i, j) <= 1:
                made.links_of(devices[i], devices[j], 1, LINK_TYPES["XGMI 4"], rates.xgmi)
    ends = tuple(End(name.lower(), Kind.DEVICE, numa.get(name)) for name in names)
    PcieHost(ends, nearness, "16 GT/s", LINK_TYPES["Infinity Fabric, Zen 4"], rates).add_to(made)
    return made.build(source)
