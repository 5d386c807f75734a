"""Topology files of NCCL: what they say, other files of NCCL, and XML that is meant to harm."""

from __future__ import annotations

import contextlib
import random

import pytest
from tests.topology.samples import XML
from tests.topology.test_nvidia_smi import ends, joined

from samegrad.errors import TopologyError
from samegrad.topology import Kind, Topology
from samegrad.topology.link_types import Rates

BOMB = """<?xml version="1.0"?>
<!DOCTYPE system [
 <!ENTITY a "aaaaaaaaaa">
 <!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
]>
<system version="&b;"/>
"""


def test_what_a_file_says() -> None:
    topology = Topology.from_nccl_xml(XML)
    assert topology.devices == ("gpu0", "gpu1")
    assert joined(topology) == {("gpu0", "gpu1"): 2}
    assert ends(topology) == {
        ("gpu0", "gpu1", "NVLink 2"),
        ("cpu0", "root0", "memory"),
        ("plx0", "root0", "PCIe 3.0 x16"),
        ("gpu0", "plx0", "PCIe 3.0 x16"),
        ("gpu1", "plx0", "PCIe 3.0 x16"),
        ("nic0", "plx0", "PCIe 3.0 x8"),
    }
    assert {link.bandwidth for link in topology.links} == {36e9, 80e9, 12e9, 6e9}
    assert Topology.from_nccl_xml(XML, Rates(nvlink=1e9)).links[1].bandwidth == 2e9


def test_an_nvswitch_is_one_switch() -> None:
    text = XML.replace(
        'target="0000:12:00.0" count="2" tclass="0x030200"', 'target="ffff:00" count="6" tclass="0x068000"'
    )
    text = text.replace(
        '<nvlink target="0000:11:00.0" count="2" tclass="0x030200"/>',
        '<nvlink target="ffff:00" count="4" tclass="0x068000"/><nvlink target="ffff:01" count="2" tclass="0x068000"/>',
    )
    topology = Topology.from_nccl_xml(text)
    counts = {link.a: link.count for link in topology.links if link.b == "nvswitch"}
    assert counts == {"gpu0": 6, "gpu1": 6}


def test_links_to_itself_and_out_of_the_file_are_left_out() -> None:
    text = XML.replace('target="0000:12:00.0"', 'target="0000:11:00.0"').replace(
        'target="0000:11:00.0" count="2" tclass="0x030200"/>\n        </gpu>\n      </pci>\n      <pci busid="0000:13',
        'target="0000:99:00.0" count="2" tclass="0x030200"/>\n        </gpu>\n      </pci>\n      <pci busid="0000:13',
    )
    assert not joined(Topology.from_nccl_xml(text))


def test_bare_trees_are_told_by_their_classes() -> None:
    text = """<system version="1"><cpu numaid="0">
      <pci busid="2" class="0x030200" link_speed="16 GT/s" link_width="16"/>
      <pci busid="1" class="0x120000" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="3" class="0x020700" link_speed="" link_width="0"/>
      <pci busid="4" class="0x010802" link_speed="" link_width="0"/>
    </cpu></system>"""
    topology = Topology.from_nccl_xml(text)
    assert ends(topology) == {
        ("gpu1", "root0", "PCIe 4.0 x16"),
        ("gpu0", "root0", "PCIe 5.0 x16"),
        ("nic0", "root0", "PCIe 3.0 x16"),
        ("cpu0", "root0", "memory"),
    }


def test_a_card_with_two_networks_is_shared_by_them() -> None:
    text = XML.replace('<net name="mlx5_0" dev="0" speed="100000"/>', '<net name="a"/><net name="b"/>')
    topology = Topology.from_nccl_xml(text)
    assert [node.name for node in topology.nodes if node.kind is Kind.NIC] == ["nic0", "nic1"]
    assert ("plx1", "plx0", "PCIe 3.0 x8") in ends(topology)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "line 2: a document type or an entity is declared"),
        ('<!DOCTYPE s SYSTEM "file:///etc/passwd"><system/>', "line 1: a document type or an entity is declared"),
        ("", "the XML is not well-formed: no element found"),
        (XML[:400], "the XML is not well-formed"),
        ("<system>" * 100 + "</system>" * 100, "more than 64 elements within each other"),
        ("<graphs><graph/></graphs>", "line 1: <graphs> is a graph file of NCCL"),
        ("<html/>", "expected <system>, a topology of NCCL; got <html>"),
        ("<system/>", "line 1: <system> has no <cpu>"),
        ("<system><cpu/></system>", "line 1: there is no GPU in the file"),
        ('<system>\n<cpu numaid="0">\n<pci busid="7"/></cpu></system>', "line 3: <pci busid='7'> has no class"),
        (XML.replace('busid="0000:12', 'busid="0000:11'), "line 9: two devices have the busid '0000:11:00.0'"),
        (XML.replace('12:00.0" count="2"', '12:00.0" count="3"'), "line 11: gpu0 has 2 links to gpu1, but gpu1 has 3"),
        (XML.replace('count="2"', 'count="-2"'), "line 11: count must be a number of links from 1 to 1024; got '-2'"),
        (XML.replace("</system>", '<cpu numaid="0"/></system>'), "line 21: two <cpu> have the numaid 0"),
        (" " * (2**24 + 1), "characters are too many"),
    ],
)
def test_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as info:
        Topology.from_nccl_xml(text)
    assert message in str(info.value)


@pytest.mark.parametrize("seed", range(200))
def test_spoilt_files_raise_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    text = XML
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text))
        inserted = rng.choice(["", " ", "<", "/>", '"', "<gpu/>", "<nic/>", "<cpu/>", "9", "\x00", "\udc80", "<pci/>"])
        text = text[:at] + inserted + text[at + rng.randint(0, 12) :]
    with contextlib.suppress(TopologyError):
        assert Topology.from_nccl_xml(text).devices
