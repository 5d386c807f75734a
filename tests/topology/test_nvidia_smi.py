"""The matrix of nvidia-smi, however it was pasted; what is missing in it; and texts that are spoilt at random."""

from __future__ import annotations

import contextlib
import random

import pytest
from tests.topology.samples import LEGEND, MATRIX

from samegrad.errors import TopologyError
from samegrad.topology import Kind, Topology
from samegrad.topology.link_types import Rates


def joined(topology: Topology) -> dict[tuple[str, str], int]:
    """The links between devices, by names, with the number of parallel ones."""
    links = [topology.links[number] for _, _, number in topology.device_links()]
    return {(link.a, link.b): link.count for link in links}


def ends(topology: Topology) -> set[tuple[str, str, str]]:
    return {(link.a, link.b, link.kind) for link in topology.links}


def test_what_a_matrix_says() -> None:
    topology = Topology.from_nvidia_smi(MATRIX + LEGEND)
    assert topology.devices == ("gpu0", "gpu1", "gpu2", "gpu3")
    assert topology.hosts == ("cpu0", "cpu1")
    assert joined(topology) == {("gpu0", "gpu1"): 2, ("gpu2", "gpu3"): 2}
    assert ends(topology) == {
        ("gpu0", "gpu1", "NVLink 2"),
        ("gpu2", "gpu3", "NVLink 2"),
        ("gpu0", "root0", "PCIe 3.0 x16"),
        ("gpu1", "root0", "PCIe 3.0 x16"),
        ("gpu2", "plx0", "PCIe 3.0 x16"),
        ("nic0", "plx0", "PCIe 3.0 x16"),
        ("plx0", "root1", "PCIe 3.0 x16"),
        ("gpu3", "root1", "PCIe 3.0 x16"),
        ("cpu0", "root0", "memory"),
        ("cpu1", "root1", "memory"),
        ("root0", "root1", "UPI"),
    }


def _wrapped(line: str, words: int) -> str:
    """The line as a terminal shows it that has room for so many cells."""
    cells = line.split("\t")
    return "\n".join("\t".join(cells[at : at + words]) for at in range(0, len(cells), words))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\t", "    "),
        lambda text: text.replace("\t", "\t\t"),
        lambda text: text.replace("\t", " \t "),
        lambda text: "\n".join(" ".join(line.split()) for line in text.split("\n")),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text.replace("\n", " " * 100 + "\n"),
        lambda text: "    " + text.replace("\n", "\n    "),
        lambda text: "> " + text.replace("\n", "\n> "),
        lambda text: "0: " + text.replace("\n", "\n0: "),
        lambda text: "[1,0]<stdout>:" + text.replace("\n", "\n[1,0]<stdout>:"),
        lambda text: "\t\x1b[4m" + text.lstrip().replace("GPU NUMA ID", "GPU NUMA ID\x1b[0m"),
        lambda text: text.replace("NV2", "\x1b[32mNV2\x1b[0m"),
        lambda text: text.replace("SYS", "SOC"),
        lambda text: "user@box:~$ nvidia-smi topo -m\n" + text,
        lambda text: "srun: job 7 queued\nGPU0 is waiting\n\n" + text + LEGEND,
        lambda text: "```\n" + text + "```\n",
        lambda text: text + "\n" + text,
        lambda text: text + "\n\tGPU0\tGPU1\nGPU0\tX\tNS\nGPU1\tNS\tX\n",
        lambda text: "\ufeff" + text,
        lambda text: "\n".join(_wrapped(line, 5) for line in text.split("\n")),
        lambda text: "\n".join(_wrapped(line, 3) for line in text.split("\n")),
        lambda text: text[: text.index("NIC0\tSYS\tSYS\tPIX")] + "\n\tGPU0\tGPU1\nGPU0\tX\tNS\nGPU1\tNS\tX\n",
        lambda text: text.replace("GPU3\tNIC0", "GPU3NIC0"),
    ],
)
def test_however_it_was_pasted(change: object) -> None:
    assert callable(change)
    assert Topology.from_nvidia_smi(change(MATRIX)) == Topology.from_nvidia_smi(MATRIX)


@pytest.mark.parametrize(("outer", "bar", "rule"), [("| ", "|", "---"), ("", "|", "---"), ("│", "│", "─┼─")])
def test_as_a_table(outer: str, bar: str, rule: str) -> None:
    rows = [line.split("\t") for line in MATRIX.splitlines()]
    lines = [outer + f" {bar} ".join(cell.strip() for cell in row[:6]) for row in rows]
    lines.insert(1, outer + bar.join([rule] * 6))
    topology = Topology.from_nvidia_smi("\n".join(lines))
    assert joined(topology) == joined(Topology.from_nvidia_smi(MATRIX))
    assert len(topology.hosts) == 2  # SYS keeps them apart, though the affinities are gone


def test_an_nvswitch_is_told_by_more_links_than_a_device_has() -> None:
    names = [f"GPU{number}" for number in range(8)]
    rows = [" ".join([a, *("X" if a == b else "NV12" for b in names), "0-63"]) for a in names]
    topology = Topology.from_nvidia_smi("\n".join([" ".join([*names, "CPU Affinity"]), *rows]))
    assert not joined(topology)
    to_switch = [link for link in topology.links if "nvswitch" in (link.a, link.b)]
    assert {(link.a, link.count, link.kind) for link in to_switch} == {(a.lower(), 12, "NVLink 3") for a in names}


@pytest.mark.parametrize(
    ("count", "devices", "kind"),
    [(1, 2, "NVLink 2"), (4, 2, "NVLink 3 bridge"), (6, 4, "NVLink 4"), (4, 4, "NVLink 3"), (12, 2, "NVLink 3")],
)
def test_generations(count: int, devices: int, kind: str) -> None:
    names = [f"GPU{number}" for number in range(devices)]
    rows = [" ".join([a, *("X" if a == b else f"NV{count}" for b in names)]) for a in names]
    topology = Topology.from_nvidia_smi("\n".join([" ".join(names), *rows]))
    assert {topology.links[number].kind for _, _, number in topology.device_links()} == {kind}
    assert set(joined(topology).values()) == {count}


def test_rates_can_be_given() -> None:
    topology = Topology.from_nvidia_smi(MATRIX, Rates(nvlink=1e9, pcie=2e9, socket=3e9))
    assert {link.bandwidth for link in topology.links} == {2e9, 3e9, 80e9}  # two NVLinks, PCIe; sockets; memory
    assert topology.links[0].bandwidth == 2e9


def test_pcie_switches_above_switches() -> None:
    text = """GPU0 GPU1 GPU2 GPU3 CPU Affinity
    GPU0 X PIX PXB PXB 0-7
    GPU1 PIX X PXB PXB 0-7
    GPU2 PXB PXB X PIX 0-7
    GPU3 PXB PXB PIX X 0-7"""
    topology = Topology.from_nvidia_smi(text)
    assert {node.name for node in topology.nodes if node.kind is Kind.SWITCH} == {"root0", "pex0", "plx0", "plx1"}
    way = [topology.link_name(number) for number in topology.route("gpu0", "gpu3")]
    assert way == ["gpu0 -> plx0", "plx0 -> pex0", "pex0 -> plx1", "plx1 -> gpu3"]


def test_devices_of_one_numa_node_that_are_sys_apart() -> None:
    text = "GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X SYS 0-7 0\nGPU1 SYS X 0-7 0\n"
    topology = Topology.from_nvidia_smi(text)
    assert topology.hosts == ("cpu0",)
    assert sum(topology.links[number // 2].kind == "UPI" for number in topology.route("gpu0", "gpu1")) == 2


def test_missing_affinities() -> None:
    text = (
        "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNV6\tNV6\t0-7\t0\t\tN/A\n"
        "GPU1\tNV6\t X \tNV6\t\t1\t\tN/A\nGPU2\tNV6\tNV6\t X \t\t1\t\tN/A\n"
    )
    topology = Topology.from_nvidia_smi(text)
    assert [topology.route(name, "cpu1") != () for name in topology.devices] == [True] * 3
    assert topology.hosts == ("cpu0", "cpu1")
    assert [topology.link_name(number) for number in topology.route("gpu2", "cpu1")] == [
        "gpu2 -> root1",
        "root1 -> cpu1",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: there is no matrix of devices"),
        ("hello GPU0\n", "line 1: expected a matrix"),
        (MATRIX.split("\n", 1)[1], "line 1: row GPU0 has no line with the names of the columns above it"),
        ("\n".join(MATRIX.split("\n")[:3]), "line 3: the matrix ends here, without rows GPU2, GPU3: it is cut"),
        ("\n".join(MATRIX.split("\n")[:4]), "line 4: the matrix ends here, without row GPU3"),
        (MATRIX[: MATRIX.index("GPU3\tSYS") + 12], "line 5: row GPU3, column GPU2: expected X, NV#"),
        (
            MATRIX.replace("NIC0\tSYS", "NIC0\tPHB"),
            "line 2: row GPU0, column NIC0 says SYS, but in line 6 row NIC0 says",
        ),
        (MATRIX.replace("NV2\t X ", "NV1\t X "), "row GPU0, column GPU1 says NV2, but in line 3 row GPU1 says NV1"),
        (MATRIX.replace("NV2", "C2C"), "line 2: row GPU0, column GPU1: expected X, NV#, PIX"),
        (MATRIX.replace("NV2", "NV99"), "line 2: row GPU0, column GPU1: a device has 1 to 18 NVLinks; got NV99"),
        (MATRIX.replace("NV2", "X"), "line 2: row GPU0, column GPU1: X stands on the diagonal"),
        ("GPU0 GPU1\nGPU0 X NV4 1,3 0\nGPU1 NV4 X 0,2", "line 3: row GPU1 ends with '0,2', where others go on"),
        ("GPU0 GPU1\nGPU0 X NV4 0-7 N/A\nGPU1 NV4 X 0-7 N", "line 3: row GPU1 ends with '0-7 N', where others"),
        (MATRIX.replace(" X ", "PIX"), "line 2: row GPU0, column GPU0: X stands on the diagonal"),
        (MATRIX.replace("GPU3\tSYS", "GPU2\tSYS"), "line 5: row GPU2 is there a second time (first in line 4)"),
        ("GPU0 GPU1\nGPU0 X OK\nGPU1 OK X\n", "line 2: row GPU0, column GPU1: expected X, NV#"),
        ("x" * (2**24 + 1), "characters are too many"),
    ],
)
def test_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as info:
        Topology.from_nvidia_smi(text)
    assert message in str(info.value)


def test_a_cut_text_is_refused_or_says_the_same_about_devices() -> None:
    whole = Topology.from_nvidia_smi(MATRIX)
    accepted = 0
    for end in range(len(MATRIX)):
        try:
            topology = Topology.from_nvidia_smi(MATRIX[:end])
        except TopologyError:
            continue
        accepted += 1
        assert joined(topology) == joined(whole)
        assert (topology.devices, topology.hosts) == (whole.devices, whole.hosts)
    assert accepted >= len("SYS\tPIX\tNODE\t X")


@pytest.mark.parametrize("seed", range(200))
def test_spoilt_texts_raise_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    text = list(MATRIX + LEGEND)
    for _ in range(rng.randint(1, 30)):
        at = rng.randrange(len(text))
        text[at] = rng.choice(["", " ", "\t", "\n", "\x00", "GPU0", "NV", "9", "X", "|", "\x1b[", "é", "\udc80"])
    with contextlib.suppress(TopologyError):
        assert Topology.from_nvidia_smi("".join(text)).devices
