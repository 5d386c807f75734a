"""Outputs of tools on real machines, where the folder with them is beside the repository."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.topology.samples import SHARED

from samegrad.errors import TopologyError
from samegrad.topology import Kind, Topology

pytestmark = pytest.mark.skipif(not SHARED.exists(), reason="../shared/topologies is not there")

REFUSED = {
    "48_dgx2_16xV100_truncated.txt": ": line 7: the matrix ends here, without rows GPU5",
    "50_8gpu_mlx4_wide_trailing_blanks_truncated.txt": ": line 7: the matrix ends here, without rows GPU5, GPU6, GPU7",
    "58_8xB200_glued_header_truncated.txt": ": line 7: the matrix ends here, without rows GPU5, GPU6, GPU7",
    "60_8xH100_12nic_headless_middle.txt": ": line 1: row GPU4 has no line with the names of the columns above it",
    "66_8xH100_18nic_shifted_truncated.txt": ": line 7: row GPU4, column GPU1: expected X, NV#",
    "aws-ofi-nccl_g5.48xl-topo.xml": ": line 14: <pci busid='0000:00:16.0'> has no class",
    "aws-ofi-nccl_p5.48xl-topo.xml": ": line 18: <pci busid='0000:4f:00.0'> has no class",
    "azhpc_ncv4-graph.xml": ": line 1: <graphs> is a graph file of NCCL",
}
TEXTS = sorted(SHARED.glob("*.txt"))
FILES = sorted((SHARED / "xml").rglob("*.xml"))


def direct(topology: Topology) -> Counter[tuple[str, str]]:
    """Parallel links between each two devices."""
    counts: Counter[tuple[str, str]] = Counter()
    for _, _, number in topology.device_links():
        link = topology.links[number]
        counts[min(link.a, link.b), max(link.a, link.b)] += link.count
    return counts


@pytest.mark.parametrize("path", [path for path in TEXTS + FILES if path.name in REFUSED], ids=lambda path: path.name)
def test_refused(path: Path) -> None:
    with pytest.raises(TopologyError) as info:
        Topology.load(path)
    assert f"{path}{REFUSED[path.name]}" in str(info.value)


@pytest.mark.parametrize("path", [path for path in TEXTS if path.name not in REFUSED], ids=lambda path: path.name)
def test_text(path: Path) -> None:
    topology = Topology.load(path)
    text = re.sub(r"\x1b\[[0-9;]*m", "", path.read_text(encoding="utf-8"))
    index = (SHARED / "index.md").read_text(encoding="utf-8")
    (row,) = [line for line in index.splitlines() if path.name in line]
    assert len(topology.devices) == _devices(row)
    wanted: Counter[tuple[str, str]] = Counter()
    switched = False
    for line in text.splitlines():
        words = line.replace("|", " ").split()
        if len(words) > 1 and re.fullmatch(r"GPU\d+", words[0]) and words[1] != "GPU1":
            for number, word in enumerate(words[1 : len(topology.devices) + 1]):
                pair = sorted((words[0].lower(), f"gpu{number}"))
                if match := re.fullmatch(r"NV(\d+)|XGMI", word):
                    wanted[pair[0], pair[1]] = int(match[1] or 1)
    for name in topology.devices:
        switched |= sum(count for pair, count in wanted.items() if name in pair) > 18
    assert any(node.name == "nvswitch" for node in topology.nodes) == switched
    if switched:
        on_switch = {link.a: link.count for link in topology.links if link.b == "nvswitch"}
        assert on_switch == {name: max(wanted.values()) for name in topology.devices}
    else:
        assert direct(topology) == wanted
    for a in topology.devices:
        for b in topology.devices:
            assert (topology.route(a, b) == ()) == (a == b)


def _devices(row: str) -> int:
    """The number of devices in a row of the index: "8x A100", "4 AMD GPUs", "6x GTX 1070 + 1x GTX 1080 on risers"."""
    return sum(int(number) for number in re.findall(r"(?:^|\+ )(\d+)", row.split("|")[2].strip()))


@pytest.mark.parametrize("path", [path for path in FILES if path.name not in REFUSED], ids=lambda path: path.name)
def test_xml(path: Path) -> None:
    topology = Topology.load(path)
    root = ElementTree.parse(path).getroot()
    gpus = {
        pci.attrib["busid"]: pci.find("gpu")
        for pci in root.iter("pci")
        if pci.find("gpu") is not None or pci.attrib.get("class", "")[:6] in ("0x0302", "0x0380", "0x1200")
    }
    assert len(topology.devices) == len(gpus)
    assert len(topology.hosts) == len(root.findall("cpu"))
    if any(True for _ in root.iter("net")):
        assert sum(node.kind is Kind.NIC for node in topology.nodes) == len(list(root.iter("net")))
    wanted: Counter[tuple[str, str]] = Counter()
    for bus, gpu in gpus.items():
        for link in [] if gpu is None else [*gpu.findall("xgmi"), *gpu.findall("nvlink")]:
            other = gpus[link.attrib["target"]]
            if gpu is not None and other is not None and link.attrib["target"] > bus:
                pair = sorted((f"gpu{gpu.attrib['dev']}", f"gpu{other.attrib['dev']}"))
                wanted[pair[0], pair[1]] += int(link.attrib["count"])
    assert direct(topology) == wanted
