"""Which kind of text it is, files, and names."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.topology.samples import MATRIX, ROCM, XML

from samegrad.errors import DataMissing, TopologyError
from samegrad.topology import LINK_TYPES, Rates, Topology, find
from samegrad.topology.link_types import nvlink_of, pcie, socket_of, xgmi_of

TOML = Topology.preset("pcie-switch-2").to_toml()


def test_the_kind_is_told_by_the_text() -> None:
    assert Topology.from_text(MATRIX).links == Topology.from_nvidia_smi(MATRIX).links
    assert Topology.from_text(ROCM).links == Topology.from_rocm_smi(ROCM).links
    assert Topology.from_text("\ufeff\n" + XML).links == Topology.from_nccl_xml(XML).links
    assert Topology.from_text(TOML) == Topology.preset("pcie-switch-2")
    assert Topology.from_text(f"<pre>\n{MATRIX}</pre>").links == Topology.from_nvidia_smi(MATRIX).links
    assert Topology.from_text(MATRIX, Rates(nvlink=1e9)).links[0].bandwidth == 2e9


@pytest.mark.parametrize("text", ["", "hello", "{}", "name: two\nlinks: 3\n", "\x00\x01\x02", "GPU"])
def test_a_text_that_is_no_topology(text: str) -> None:
    with pytest.raises(TopologyError, match="topology: this is no topology; expected the output of"):
        Topology.from_text(text)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("box.txt", MATRIX.encode()),
        ("box.log", ROCM.encode()),
        ("box.xml", XML.encode()),
        ("box", XML.encode()),
        ("box.txt", MATRIX.encode("utf-16")),
        ("box.txt", b"\xff\xff\n" + MATRIX.encode()),
    ],
)
def test_files_are_named_after_themselves(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    topology = Topology.load(tmp_path / name)
    assert topology.name == "box"
    assert topology == find(str(tmp_path / name))


def test_a_name_within_a_file_counts(tmp_path: Path) -> None:
    (tmp_path / "box.toml").write_text(TOML, encoding="utf-8")
    assert Topology.load(tmp_path / "box.toml").name == "pcie-switch-2"


def test_a_file_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(find("dgx-1v").devices) == 8
    Path("dgx-1v").write_text(TOML, encoding="utf-8")
    assert len(find("dgx-1v").devices) == 2


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "box.toml"
    with pytest.raises(DataMissing, match=r"box\.toml: could not be read: No such file"):
        Topology.load(path)
    with pytest.raises(DataMissing, match="could not be read: Is a directory"):
        Topology.load(tmp_path)
    path.write_text("[[node]]\nname = 3\n", encoding="utf-8")
    with pytest.raises(TopologyError, match=r"box\.toml: line 1: kind: expected"):
        Topology.load(path)
    with pytest.raises(TopologyError, match=r"there is no preset 'dgx-1'; did you mean 'dgx-1v'.*Nor is there a file"):
        find("dgx-1")
    for name in ("cluster.toml", "out/topo", "box.xml"):
        with pytest.raises(DataMissing):
            find(name)
    for name in ("", " "):
        with pytest.raises(TopologyError, match=f"expected the name of a file or of a preset; got '{name}'"):
            find(name)


@pytest.mark.parametrize("seed", range(100))
def test_random_bytes_raise_nothing_else(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    path = tmp_path / f"box{rng.choice(['', '.toml', '.xml', '.txt'])}"
    path.write_bytes(rng.choice([b"", b"<", b"[[node]]\n", b"GPU0 GPU1\n"]) + rng.randbytes(rng.randrange(300)))
    with pytest.raises(TopologyError):
        Topology.load(path)


def test_types_of_links() -> None:
    assert [nvlink_of(sm).name for sm in (60, 70, 75, 80, 86, 90, 100, 120)] == [
        *("NVLink 1", "NVLink 2", "NVLink 2", "NVLink 3", "NVLink 3 bridge", "NVLink 4", "NVLink 5", "NVLink 5"),
    ]
    assert [xgmi_of(name).name for name in ("906", "908", "910", "gfx90a", "940", "gfx942", "")] == [
        *("XGMI 2", "XGMI 2", "XGMI 3", "XGMI 3", "XGMI 4", "XGMI 4", "XGMI 4"),
    ]
    assert pcie("8 GT/s", 16) == (12e9, "PCIe 3.0 x16")
    assert pcie("16.0 GT/s PCIe", 8) == (12e9, "PCIe 4.0 x8")
    assert pcie("2.5 GT/s", 1) == (3e9 / 16, "PCIe 1.0 x1")
    for speed, lanes in (("", 0), ("Unknown", 16), ("8 GT/s", -1), ("7 GT/s", 9999)):
        assert pcie(speed, lanes) == (12e9, "PCIe 3.0 x16")
    assert socket_of("x86_64", "AuthenticAMD", 143, 49).name == "Infinity Fabric, Zen 2"
    assert socket_of("x86_64", "AuthenticAMD", 175, 1).name == "Infinity Fabric, Zen 4"
    assert socket_of("x86_64", "AuthenticAMD", 26, 2).name == "Infinity Fabric, Zen 5"
    assert [socket_of("x86_64", "GenuineIntel", 6, model).name for model in (79, 85, 143)] == ["QPI", "UPI", "UPI 2.0"]
    assert socket_of("arm64", "ARM", 0, 0).name == "Arm socket link"
    assert socket_of("ppc64", "IBM", 0, 0).name == "X-bus"


def test_no_link_carries_more_than_is_specified() -> None:
    assert all(0 < each.bandwidth <= each.specified and each.source for each in LINK_TYPES.values())
